/** The lines that ranks are writing just now, as rows below the others. */
import { plain } from '../log/ansi';
import { cutNote, STYLED } from '../log/lines';
import type { Unfinished } from '../log/log';
import { textRows, type Filter } from '../log/rows';
import { columnsOf } from '../log/width';
import type { RowContent } from './row';

export interface OpenRow extends RowContent {
  /** Text rows above it, and its own. */
  top: number;
  height: number;
}

/** The rows to be seen, from text row `top` on; equal ones of several ranks once. */
export function openRows(
  lines: readonly Unfinished[],
  filter: Filter,
  top: number,
  columns: number
): OpenRow[] {
  const rows: OpenRow[] = [];
  for (const line of lines) {
    const text = plain(line.text);
    if ((filter.ranks && !filter.ranks.has(line.rank)) || (filter.text && !filter.text(text))) {
      continue;
    }
    const flags = line.flags | STYLED;
    const same = rows.find(row => row.text === line.text && row.flags === flags);
    if (filter.collapsed && same && !same.ranks.includes(line.rank)) {
      same.ranks = [...same.ranks, line.rank].sort((a, b) => a - b);
    } else {
      const width = columnsOf(text) + (line.cut ? cutNote(line.cut).length : 0);
      const height = textRows(width, columns);
      rows.push({ ...line, flags, ranks: [line.rank], t: null, top, height });
      top += height;
    }
  }
  return rows;
}
