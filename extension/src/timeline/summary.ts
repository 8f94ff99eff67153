/** A timeline in a sentence or two, for screen readers. */
import { nameRanks } from '../ranks';
import type { Profile } from '../schema';
import { trans } from '../translation';
import { grouped } from '../words';
import { lasting } from './range';
import type { SpanSource } from './spans';

export function summary(spans: SpanSource, profile: Profile | null, ranks: readonly number[]): string {
  const extent = spans.extent;
  const count = countOf(spans, ranks);
  const all = trans._n('%2 span', '%2 spans', count, grouped(count));
  const what = extent
    ? trans.__('Timeline of %1: %2 over %3.', nameRanks(ranks), all, lasting(extent.to - Math.min(0, extent.from)))
    : trans.__('Timeline of %1: %2.', nameRanks(ranks), all);
  return `${what} ${profile?.diagnosis ?? ''}`.trim();
}

/** Return the number of spans of these ranks; of an overview, only the total is known. */
function countOf(spans: SpanSource, ranks: readonly number[]): number {
  if (spans.isCut || ranks.length === spans.ranks.length) {
    return spans.count;
  }
  return ranks.flatMap(rank => spans.cats(rank).map(cat => spans.columns(rank, cat).length)).reduce((a, b) => a + b, 0);
}
