/** The unfinished lines that ranks are writing, as rows below the others. */
import { plain } from '../log/ansi';
import { headText } from '../log/head';
import { cutNote, STYLED } from '../log/lines';
import type { Unfinished } from '../log/log';
import { commonText, piecesOf } from '../log/numbers';
import { textRows, type Filter } from '../log/rows';
import { columnsOf } from '../log/width';
import type { RowContent } from './row';

export interface OpenRow extends RowContent {
  /** The number of text rows above this row, and its own. */
  top: number;
  height: number;
}

/** Lines of different ranks that are alike, and shown in one row. */
interface Alike {
  common: string;
  flags: number;
  ranks: number[];
  texts: string[];
  cut: number;
}

/** Return the visible rows, from text row `top` on; like lines of several ranks share a row. */
export function openRows(
  lines: readonly Unfinished[],
  filter: Filter,
  top: number,
  columns: number
): OpenRow[] {
  const groups: Alike[] = [];
  for (const { text, rank, flags, cut } of lines) {
    if ((filter.ranks && !filter.ranks.has(rank)) || (filter.text && !filter.text(plain(text)))) {
      continue;
    }
    const common = filter.byNumbers ? commonText(text, rank) : text;
    const group = groups.find(other => other.common === common && other.flags === flags);
    if (filter.collapsed && group && !group.ranks.includes(rank)) {
      group.ranks.push(rank);
      group.texts.push(text);
    } else {
      groups.push({ common, flags, ranks: [rank], texts: [text], cut });
    }
  }
  return groups.map(group => {
    const row = openRow(group, top, columns);
    top += row.height;
    return row;
  });
}

function openRow({ flags, ranks, texts, cut }: Alike, top: number, columns: number): OpenRow {
  const text = texts[0];
  const differ = texts.some(other => other !== text);
  const head = differ ? { ranks: [...ranks], pieces: piecesOf(texts), isFold: false } : null;
  const width = columnsOf(head ? headText(head.pieces) : plain(text)) + (cut ? cutNote(cut).length : 0);
  const height = textRows(width, columns);
  return { text, cut, head, flags: flags | STYLED, ranks: [...ranks].sort((a, b) => a - b), t: null, top, height };
}
