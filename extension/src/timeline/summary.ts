/** The picture in a sentence or two, for those who do not see it. */
import { nameRanks } from '../ranks';
import { count } from '../words';
import type { Bands } from './parts';
import { lasting } from './range';
import type { Spans } from './spans';

const known = new WeakMap<Bands, string>();

export function summary(spans: Spans, bands: Bands | null, ranks: readonly number[]): string {
  const extent = spans.extent;
  const over = extent ? ` over ${lasting(extent.to - Math.min(0, extent.from))}` : '';
  return `Timeline of ${nameRanks(ranks)}: ${count(spans.count, 'span')}${over}.${bands ? ` ${late(bands)}` : ''}`.trim();
}

/** Who came last to collectives most often. */
function late(bands: Bands): string {
  let words = known.get(bands);
  if (words === undefined) {
    const times = new Map<number, number>();
    let all = 0;
    for (const { ranks, spread, straggler } of bands.matching.collectives) {
      if (ranks.length > 1) {
        all += 1;
        times.set(straggler, (times.get(straggler) ?? 0) + (spread > 0 ? 1 : 0));
      }
    }
    const [first] = [...times].sort((a, b) => b[1] - a[1]);
    words = all && first?.[1] ? `${count(all, 'collective')}; rank ${first[0]} came last in ${first[1].toLocaleString('en')} of them.` : '';
    known.set(bands, words);
  }
  return words;
}
