/** What is said about spans, collectives and ranges, in words. */
import type { SpanName } from '../schema';
import { waitedUntil, type Collective } from './collectives';
import { least, most } from './parts';
import { lasting } from './range';

/** What an argument of a span's name says, for a reader: `bytes: 4.1 kB`. */
export function argsOf(name: SpanName): Array<[string, string]> {
  return Object.entries(name)
    .filter(([key, value]) => key !== 'name' && value !== undefined && value !== null)
    .map(([key, value]) => [key, key === 'bytes' ? bytes(Number(value)) : plain(value)]);
}

function plain(value: unknown): string {
  if (Array.isArray(value)) {
    return value.join(' × ').slice(0, 200) || '–';
  }
  return (typeof value === 'object' ? JSON.stringify(value) : String(value)).slice(0, 400);
}

/** `4.1 kB`, exactly where that is short. */
export function bytes(count: number): string {
  if (!Number.isFinite(count)) {
    return '?';
  }
  const units = ['bytes', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  let value = count;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return unit ? `${value.toPrecision(3)} ${units[unit]}` : `${value} bytes`;
}

/** `allreduce grad.3`. */
export function title({ op, tensor }: Pick<Collective, 'op' | 'tensor'>): string {
  return [op, tensor].filter(Boolean).join(' ') || 'collective';
}

/** Who came last to a collective, and by how much. */
export function who(collective: Collective): string {
  const { ranks, starts, ends, last, straggler, cost, absent } = collective;
  const missing = absent.length ? ` ${absent.length === 1 ? 'Rank' : 'Ranks'} ${absent.slice(0, 8).join(', ')}${absent.length > 8 ? ', …' : ''} did not take part.` : '';
  if (ranks.length < 2) {
    return `Only rank ${ranks[0] ?? straggler} is known to have taken part.${missing}`;
  }
  const spread = last - least(starts);
  if (spread <= 0) {
    return `All ${ranks.length} ranks arrived together; it took ${lasting(most(ends) - last)}.${missing}`;
  }
  const first = ranks[starts.indexOf(least(starts))];
  const waited = starts.reduce((sum, start, i) => sum + waitedUntil(collective, i) - start, 0);
  const others = ranks.length > 2 ? `, ${lasting(cost)} after the others’ median` : '';
  return (
    `Rank ${straggler} came last, ${lasting(spread)} after rank ${first}, the first${others}. ` +
    `The ranks waited ${lasting(waited)} together, then it took ${lasting(Math.max(0, most(ends) - last))}.${missing}`
  );
}

export interface Arrival {
  rank: number;
  /** Microseconds after the first arrival. */
  after: number;
  wait: number;
  transfer: number;
  isLast: boolean;
}

/** Each rank's part in a collective, in order of arrival. */
export function arrivals(collective: Collective): Arrival[] {
  const { ranks, starts, ends, straggler } = collective;
  const first = least(starts);
  return ranks
    .map((rank, i) => {
      const until = waitedUntil(collective, i);
      return { rank, after: starts[i] - first, wait: until - starts[i], transfer: ends[i] - until, isLast: rank === straggler };
    })
    .sort((a, b) => a.after - b.after || a.rank - b.rank);
}

/** Why spans were dropped: the reasons of docs/profile-rules.md in words. */
const WHY: { [reason: string]: string } = {
  far: 'a time far from the run',
  length: 'columns of unequal length',
  name: 'no name',
  negative: 'a negative duration',
  number: 'a time that is no whole number',
  rank: 'of a rank that is not in the run'
};

/** How many spans were dropped and why: `3 spans dropped: 2 × a negative duration, 1 × …`. */
export function droppedWords(dropped: ReadonlyMap<string, number>): string {
  const count = [...dropped.values()].reduce((sum, each) => sum + each, 0);
  if (count === 0) {
    return '';
  }
  const why = [...dropped].map(([reason, each]) => `${each.toLocaleString('en')} × ${WHY[reason] ?? reason}`).join(', ');
  return `${count.toLocaleString('en')} ${count === 1 ? 'span' : 'spans'} dropped: ${why}`;
}
