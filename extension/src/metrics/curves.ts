/** Computations on curves: smoothing, mean and spread over ranks, visible parts, and the nearest bucket. */
import { lowerBound } from '../lowerbound';
import type { Range } from '../timeline/range';
import { meanOfLasts, type Bad, type Curve } from './answer';

/**
 * Return an exponential moving average with bias correction, so that it does not begin at 0. `weight` is what one
 * more point leaves of those before it. A bucket counts as its points do, so a coarse curve is as smooth as a fine one.
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

/** Return mean, lowest and highest of several ranks at the places of the longest curve; NaN where none has a value. */
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
  const { count, isAscending, isEachPoint } = first;
  return { x, mean, low, high, count, bad, last: meanOfLasts(curves), isAscending, isEachPoint };
}

/** Return the value at a place, interpolated between its neighbors, as the server does along time. */
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

/** Return the first bucket that a range shows and one past the last, with a neighbor on each side. */
export function inSight({ x, isAscending }: Curve, { from, to }: Range): [number, number] {
  if (!isAscending) {
    return [0, x.length];
  }
  const first = lowerBound(x.length, i => x[i], from);
  const last = lowerBound(x.length, i => x[i], to);
  return [Math.max(0, first - 1), Math.min(x.length, last + 1)];
}

/** Return the bucket nearest to a place; -1 if the curve is empty. */
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
  // Of equally near buckets, take the last: it replaced the others.
  return x.reduce((best, place, i) => (Math.abs(place - at) <= Math.abs(x[best] - at) ? i : best), 0);
}

/** Return how far a bucket reaches from its place: half way to the more distant neighbor. */
export function reach({ x }: Curve, i: number): number {
  const left = i > 0 ? Math.abs(x[i] - x[i - 1]) : 0;
  const right = i + 1 < x.length ? Math.abs(x[i + 1] - x[i]) : 0;
  return Math.max(left, right) / 2;
}

/** Return the last reported value, finite or not, and its place; null if there is none. */
export function lastOf({ x, mean, bad, last }: Curve): { x: number; value: number | Bad['value'] } | null {
  const i = x.length - 1;
  if (i < 0) {
    return null;
  }
  if (last !== undefined) {
    return { x: x[i], value: last };
  }
  return { x: x[i], value: Number.isFinite(mean[i]) ? mean[i] : (badAt(bad, x[i]) ?? 'NaN') };
}

/** Return the non-finite value behind a gap; as not all of many are listed, the last one listed up to there. */
export function badAt(bad: readonly Bad[], at: number): Bad['value'] | null {
  const before = bad.filter(({ x }) => x <= at);
  return (before[before.length - 1] ?? bad[0])?.value ?? null;
}
