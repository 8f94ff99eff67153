/** How ranks are named: `0,2-3` as typed, `0,2–3` as shown; and the colour each has. */
import { trans } from './translation';

/** So many colours there are; ranks share them. */
export const COLOURS = 8;

/** Runs become `0–3`, the rest is joined by commas. `ranks` ascend. */
export function formatRanks(ranks: readonly number[]): string {
  const parts: string[] = [];
  for (let i = 0; i < ranks.length; ) {
    const first = ranks[i];
    let last = first;
    while (i < ranks.length && ranks[i] <= last + 1) {
      last = ranks[i++];
    }
    parts.push(first === last ? `${first}` : `${first}–${last}`);
  }
  return parts.join(',');
}

/** `rank 2` or `ranks 0–3`. */
export function nameRanks(ranks: readonly number[]): string {
  return trans._n('rank %2', 'ranks %2', ranks.length, formatRanks(ranks));
}

/** The ranks that a text names, of those there are; a sentence if it names none or others. */
export function parseRanks(text: string, there: readonly number[]): Set<number> | string {
  const chosen = new Set<number>();
  for (const part of text.split(/[\s,]+/).filter(word => word !== '')) {
    const match = /^(\d{1,9})(?:[-–](\d{1,9}))?$/.exec(part);
    if (!match) {
      return trans.__('cannot read “%1” as ranks: write them like 0,2-3', part);
    }
    const first = Number(match[1]);
    const last = Number(match[2] ?? first);
    const named = there.filter(rank => rank >= first && rank <= last);
    if (named.length === 0) {
      return trans.__('no rank %1 in this run: it has %2', part, formatRanks(there));
    }
    named.forEach(rank => chosen.add(rank));
  }
  return chosen;
}

/** The class that gives a rank its colour, one of eight that colour-blind people tell apart. */
export function rankClass(rank: number): string {
  return `rr-rank-${rank % COLOURS}`;
}
