/** The picture in a sentence or two, for those who do not see it. */
import { nameRanks } from '../ranks';
import { trans } from '../translation';
import { grouped } from '../words';
import type { Collectives } from './collectives';
import { lasting } from './range';
import type { Spans } from './spans';

const known = new WeakMap<Collectives, string>();

export function summary(spans: Spans, collectives: Collectives | null, ranks: readonly number[]): string {
  const extent = spans.extent;
  const all = trans._n('%2 span', '%2 spans', spans.count, grouped(spans.count));
  const what = extent
    ? trans.__('Timeline of %1: %2 over %3.', nameRanks(ranks), all, lasting(extent.to - Math.min(0, extent.from)))
    : trans.__('Timeline of %1: %2.', nameRanks(ranks), all);
  return `${what}${collectives ? ` ${late(collectives)}` : ''}`.trim();
}

/** Who came last to collectives most often. */
function late(collectives: Collectives): string {
  let words = known.get(collectives);
  if (words === undefined) {
    const { shared, times } = collectives.lateness();
    const [first] = times;
    words = first?.[1]
      ? trans._n(
          '%2 collective; rank %3 came last in %4 of them.', '%2 collectives; rank %3 came last in %4 of them.',
          shared, grouped(shared), first[0], grouped(first[1])
        )
      : '';
    known.set(collectives, words);
  }
  return words;
}
