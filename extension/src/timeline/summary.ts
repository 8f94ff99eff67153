/** The picture in a sentence or two, for those who do not see it. */
import { nameRanks } from '../ranks';
import { count } from '../words';
import type { Collectives } from './collectives';
import { lasting } from './range';
import type { Spans } from './spans';

const known = new WeakMap<Collectives, string>();

export function summary(spans: Spans, collectives: Collectives | null, ranks: readonly number[]): string {
  const extent = spans.extent;
  const over = extent ? ` over ${lasting(extent.to - Math.min(0, extent.from))}` : '';
  return `Timeline of ${nameRanks(ranks)}: ${count(spans.count, 'span')}${over}.${collectives ? ` ${late(collectives)}` : ''}`.trim();
}

/** Who came last to collectives most often. */
function late(collectives: Collectives): string {
  let words = known.get(collectives);
  if (words === undefined) {
    const { shared, times } = collectives.lateness();
    const [first] = times;
    words = first?.[1] ? `${count(shared, 'collective')}; rank ${first[0]} came last in ${first[1].toLocaleString('en')} of them.` : '';
    known.set(collectives, words);
  }
  return words;
}
