/** Totals of a time range: number of spans and their time, by category. */
import { lowerBound } from '../lowerbound';
import type { Range } from './range';
import { place, type SpanSource } from './spans';

export interface Total {
  cat: string;
  /** Number of spans that touch the range. */
  count: number;
  /** Their microseconds in the range, added over ranks; nested spans count separately. */
  sum: number;
}

/** Return the totals by category, in the order of the lanes; only of `ranks`, if given. */
export function totals(source: SpanSource, { from, to }: Range, ranks: readonly number[] = source.ranks): Total[] {
  const found = new Map<string, Total>();
  for (const rank of ranks) {
    for (const cat of source.cats(rank)) {
      const { start, dur, length } = source.columns(rank, cat);
      const total = found.get(cat) ?? { cat, count: 0, sum: 0 };
      const last = lowerBound(length, i => start[i], to);
      for (let i = 0; i < last; i++) {
        const end = start[i] + dur[i];
        if (end > from || (end === from && start[i] === from)) {
          total.count += 1;
          total.sum += Math.min(end, to) - Math.max(start[i], from);
        }
      }
      found.set(cat, total);
    }
  }
  return [...found.values()].filter(({ count }) => count > 0).sort((a, b) => place(a.cat) - place(b.cat));
}
