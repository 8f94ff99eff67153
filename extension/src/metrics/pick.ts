/** The choice of metrics that have a plot: of many, the first ones and those that the reader adds. */
import type { NameInfo } from './answer';

/** Number of metrics with a plot by default; others can be found by filtering, or added one by one. */
export const FIRST_NAMES = 20;

export interface Picked {
  /** In the order in which they were first reported. */
  shown: NameInfo[];
  /** Further metrics that match, without a plot. */
  others: NameInfo[];
}

/** Choose the plots among the metrics of `ranks` whose names pass `test`; null means all ranks, or all names. */
export function pick(
  names: readonly NameInfo[],
  ranks: ReadonlySet<number> | null,
  test: ((name: string) => boolean) | null,
  pinned: ReadonlySet<string>
): Picked {
  const reported = names.filter(info => ranks === null || info.ranks.some(rank => ranks.has(rank)));
  const matching = reported.filter(({ name }) => test?.(name) ?? true);
  const first = new Set(matching.slice(0, FIRST_NAMES));
  return {
    shown: reported.filter(info => first.has(info) || pinned.has(info.name)),
    others: matching.filter(info => !first.has(info))
  };
}
