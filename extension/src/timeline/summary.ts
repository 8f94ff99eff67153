/** The picture in a sentence or two, for those who do not see it. */
import { nameRanks } from '../ranks';
import type { Profile } from '../schema';
import { trans } from '../translation';
import { grouped } from '../words';
import { lasting } from './range';
import type { SpanSource } from './spans';

export function summary(spans: SpanSource, profile: Profile | null, ranks: readonly number[]): string {
  const extent = spans.extent;
  const all = trans._n('%2 span', '%2 spans', spans.count, grouped(spans.count));
  const what = extent
    ? trans.__('Timeline of %1: %2 over %3.', nameRanks(ranks), all, lasting(extent.to - Math.min(0, extent.from)))
    : trans.__('Timeline of %1: %2.', nameRanks(ranks), all);
  return `${what} ${profile?.diagnosis ?? ''}`.trim();
}
