/** Finds the span at a place in the timeline. */
import type { Spot } from '../../timeline/find';
import type { Lane } from '../../timeline/lanes';
import type { TimeScale } from '../../timeline/range';

/** How many pixels the pointer may be beside a span. */
const SLACK = 3;

/** Return the span at `x` from the left edge and `y` from the top, in pixels of the scale; null for none. */
export function hit(lanes: readonly Lane[], scale: TimeScale, x: number, y: number): Spot | null {
  const lane = lanes.find(each => y >= each.y && y < each.y + each.height + 2);
  const line = lane?.lines.find(each => y >= each.y - 1 && y < each.y + each.height + 1);
  let best: Spot | null = null;
  let nearest = Infinity;
  // The layer that is painted last is on top.
  for (const { row, rank, cat } of [...(line?.layers ?? [])].reverse()) {
    const t = scale.t(x);
    const at = row.at(t, SLACK * scale.perPixel);
    if (at < 0) {
      continue;
    }
    const distance = Math.max(0, row.start(at) - t, t - row.end(at));
    if (distance < nearest) {
      const place = row.place(at);
      nearest = distance;
      best = { rank, cat, i: row.owners ? row.owners[place] : place };
    }
  }
  return best;
}
