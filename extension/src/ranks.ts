/** How ranks are named: `0,2-3` as typed, `0,2–3` as shown; and the color of each. */
import { trans } from './translation';

/** The number of rank colors; with more ranks, they repeat. */
export const COLOURS = 8;

/** Format ascending ranks: consecutive ones as `0–3`, separated by commas. */
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

/** Return the ranks in `there` that a text names, or a sentence on what is wrong with it. */
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

/** The class that gives a rank its color, one of eight that color-blind people can tell apart. */
export function rankClass(rank: number): string {
  return `rr-rank-${rank % COLOURS}`;
}
