/** What can be computed from curves: smoothing, mean and spread over ranks, extents, and what is nearest to a place. */
import { lowerBound } from '../lowerbound';
import type { Range } from '../timeline/range';
import type { Bad, Curve } from './answer';

/**
 * An exponential moving average with its bias corrected, so that it does not begin at 0; `weight` is what one more
 * point leaves of those before it. A bucket counts as its points do, so a coarse curve is as smooth as a fine one.
 */
export function smoothed({ mean, count }: Pick<Curve, 'mean' | 'count'>, weight: number): Float64Array {
  const out = new Float64Array(mean.length);
  let sum = 0;
  let share = 0;
  for (let i = 0; i < mean.length; i++) {
    const value = mean[i];
    if (Number.isFinite(value)) {
      const kept = weight ** count[i];
      sum = sum * kept + (1 - kept) * value;
      share = share * kept + (1 - kept);
      out[i] = sum / share;
    } else {
      out[i] = NaN;
    }
  }
  return out;
}

/** Mean, lowest and highest of some ranks at the places of the one that has most of them; NaN where none has a value. */
export function overRanks(curves: readonly Curve[]): Curve {
  const [first] = [...curves].sort((a, b) => b.x.length - a.x.length);
  const { x } = first;
  const [mean, low, high] = [0, 1, 2].map(() => new Float64Array(x.length).fill(NaN));
  for (let i = 0; i < x.length; i++) {
    let [sum, count, least, most] = [0, 0, Infinity, -Infinity];
    for (const curve of curves) {
      const value = curve === first ? curve.mean[i] : between(curve, x[i]);
      if (Number.isFinite(value)) {
        sum += value;
        count += 1;
        least = Math.min(least, value);
        most = Math.max(most, value);
      }
    }
    if (count) {
      [mean[i], low[i], high[i]] = [sum / count, least, most];
    }
  }
  const bad = curves.flatMap(curve => curve.bad);
  return { x, mean, low, high, count: first.count, bad, isAscending: first.isAscending, isEachPoint: first.isEachPoint };
}

/** The value at a place, on the line between its neighbours; the server answers the same for all ranks along time. */
function between(curve: Curve, at: number): number {
  const { x, mean, isAscending } = curve;
  const last = x.length - 1;
  if (!isAscending || last < 0 || at < x[0] - reach(curve, 0) || at > x[last] + reach(curve, last)) {
    return NaN;
  }
  if (at <= x[0] || at >= x[last]) {
    return mean[at <= x[0] ? 0 : last];
  }
  const i = lowerBound(x.length, place => x[place], at);
  return x[i] === at ? mean[i] : mean[i - 1] + ((mean[i] - mean[i - 1]) * (at - x[i - 1])) / (x[i] - x[i - 1]);
}

/** The first and one beyond the last bucket that a range shows, with a neighbour on each side. */
export function inSight({ x, isAscending }: Curve, { from, to }: Range): [number, number] {
  if (!isAscending) {
    return [0, x.length];
  }
  const first = lowerBound(x.length, i => x[i], from);
  const last = lowerBound(x.length, i => x[i], to);
  return [Math.max(0, first - 1), Math.min(x.length, last + 1)];
}

/** The bucket nearest to a place, or -1 of a curve that has none. */
export function nearest({ x, isAscending }: Curve, at: number): number {
  if (x.length === 0) {
    return -1;
  }
  if (isAscending) {
    const i = lowerBound(x.length, place => x[place], at);
    const after = Math.min(i, x.length - 1);
    const before = Math.max(0, i - 1);
    return Math.abs(x[before] - at) <= Math.abs(x[after] - at) ? before : after;
  }
  // Of those that are equally near the last one: it replaced the others.
  return x.reduce((best, place, i) => (Math.abs(place - at) <= Math.abs(x[best] - at) ? i : best), 0);
}

/** How far a bucket's place stands for: half way to its neighbours. */
export function reach({ x }: Curve, i: number): number {
  const left = i > 0 ? Math.abs(x[i] - x[i - 1]) : 0;
  const right = i + 1 < x.length ? Math.abs(x[i + 1] - x[i]) : 0;
  return Math.max(left, right) / 2;
}

/** The last value that was reported: its place, and the value or what stands for it; null if there is none. */
export function lastOf({ x, mean, bad }: Curve): { x: number; value: number | Bad['value'] } | null {
  const i = x.length - 1;
  if (i < 0) {
    return null;
  }
  return { x: x[i], value: Number.isFinite(mean[i]) ? mean[i] : (badAt(bad, x[i]) ?? 'NaN') };
}

/** What a gap stands for; what was not reported of many is like the last that was. */
export function badAt(bad: readonly Bad[], at: number): Bad['value'] | null {
  const before = bad.filter(({ x }) => x <= at);
  return (before[before.length - 1] ?? bad[0])?.value ?? null;
}
