/** A strip of utilization: how busy a rank was, on the clock of its spans. */
import type { Lane } from '../../timeline/lanes';
import { lowerBound } from '../../lowerbound';
import { size } from '../../timeline/amounts';
import type { TimeScale } from '../../timeline/range';
import type { Curve, Meter } from '../../timeline/samples';
import type { Theme } from './theme';

/** Minimum top of the scale in percent: a whole core or device. */
const WHOLE = 100;

export function top(meter: Meter, { most }: Curve): number {
  return meter === 'cpu' || meter === 'gpu' ? Math.max(WHOLE, most) : Math.max(1, most);
}

/** Format a value: `140 %`, `1.2 GB`. */
export function reading(meter: Meter, value: number): string {
  return meter === 'cpu' || meter === 'gpu' ? `${Math.round(value)} %` : size(value);
}

/** Return the value of the last sample before a moment; null if there is none. */
export function sampleAt({ t, value }: Curve, moment: number): number | null {
  const at = lowerBound(t.length, i => t[i], moment + 0.5) - 1;
  return at < 0 ? null : value[at];
}

export function paintMeter(
  context: CanvasRenderingContext2D,
  curves: ReadonlyArray<[Meter, Curve]>,
  { meter, y, height }: Lane,
  scale: TimeScale,
  theme: Theme
): void {
  const curve = curves.find(([name]) => name === meter)?.[1];
  if (!meter || !curve || curve.t.length === 0) {
    return;
  }
  const { t, value } = curve;
  const highest = top(meter, curve);
  const first = Math.max(0, lowerBound(t.length, i => t[i], scale.range.from) - 1);
  const last = Math.min(t.length, lowerBound(t.length, i => t[i], scale.range.to) + 1);
  context.beginPath();
  context.moveTo(scale.x(t[first]), y + height);
  let x = -Infinity;
  let high = 0;
  const flush = (): void => {
    if (Number.isFinite(x)) {
      context.lineTo(x, y + height - (high / highest) * (height - 2));
    }
  };
  for (let i = first; i < last; i++) {
    // Of several samples in a pixel, the highest is shown.
    const at = Math.round(scale.x(t[i]));
    if (at !== x) {
      flush();
      x = at;
      high = 0;
    }
    high = Math.max(high, value[i]);
  }
  flush();
  context.lineTo(x, y + height);
  context.globalAlpha = 0.5;
  context.fillStyle = theme.meters[meter] || theme.faint;
  context.fill();
  context.globalAlpha = 1;
  context.fillStyle = theme.line;
  context.fillRect(0, y + height - 0.5, scale.width, 0.5);
}
