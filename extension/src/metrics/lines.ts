/** The lines of a plot: a curve for each rank, or one for the mean of ranks with their spread around it. */
import type { Range } from '../timeline/range';
import type { Curve, Metric } from './answer';
import { inSight, overRanks, smoothed } from './curves';

/** With more ranks than this, mean and spread are shown, unless the reader chooses otherwise. */
export const CURVES = 16;

export interface Line {
  /** Null for the mean of several ranks, and for compared runs. */
  rank: number | null;
  /** Index of the compared run; undefined for this run. */
  other?: number;
  curve: Curve;
  /** Smoothed values, drawn over the means, which are then pale; null for no smoothing. */
  smooth: Float64Array | null;
  /** Whether the band from lowest to highest is drawn. */
  hasBand: boolean;
}

export interface LineChoice {
  /** Null for all. */
  ranks: ReadonlySet<number> | null;
  isMean: boolean;
  smoothing: number;
}

export function linesOf(metric: Metric, { ranks, isMean, smoothing }: LineChoice): Line[] {
  const chosen = metric.ranks.filter(({ rank }) => ranks?.has(rank) ?? true);
  const line = (rank: number | null, curve: Curve, hasBand: boolean): Line => ({
    rank, curve, hasBand, smooth: smoothing > 0 ? smoothed(curve, smoothing) : null
  });
  if (isMean && chosen.length > 1) {
    const bad = chosen.flatMap(curve => curve.bad);
    const over = ranks === null && metric.over ? { ...metric.over, bad } : overRanks(chosen);
    return [line(null, over, true)];
  }
  return chosen.map(curve => line(curve.rank, curve, !curve.isEachPoint && chosen.length <= CURVES));
}

/** Return the lines of the compared runs: for each, the mean of its ranks and their spread. */
export function linesOfOthers(metrics: ReadonlyArray<Metric | null>, smoothing: number): Line[] {
  return metrics.flatMap((metric, other) => {
    const lines = metric ? linesOf(metric, { ranks: null, isMean: true, smoothing }) : [];
    return lines.map(line => ({ ...line, rank: null, other }));
  });
}

/** Return the lowest and the highest visible value in a range; Infinity and -Infinity if there is none. */
export function extremes(lines: readonly Line[], range: Range, isLog: boolean): [number, number] {
  let [least, most] = [Infinity, -Infinity];
  for (const { curve, smooth, hasBand } of lines) {
    const columns = [curve.mean, ...(smooth ? [smooth] : []), ...(hasBand ? [curve.low, curve.high] : [])];
    const [first, last] = inSight(curve, range);
    for (const column of columns) {
      for (let i = first; i < last; i++) {
        const value = column[i];
        if (Number.isFinite(value) && (value > 0 || !isLog)) {
          least = Math.min(least, value);
          most = Math.max(most, value);
        }
      }
    }
  }
  return [least, most];
}

/** Return the next of the ascending places after `from` (for step -1, before it), or the last one in that direction. */
export function nextPlace(places: readonly number[], from: number | null, step: 1 | -1): number | undefined {
  const ahead = step > 0 ? places : [...places].reverse();
  return ahead.find(place => from === null || step * (place - from) > 0) ?? ahead[ahead.length - 1];
}

/** Return the place nearest to `at` where any of the lines has a bucket; null if none has. */
export function snap(lines: readonly Line[], at: number, nearest: (curve: Curve, at: number) => number): number | null {
  let best: number | null = null;
  for (const { curve } of lines) {
    const i = nearest(curve, at);
    if (i >= 0 && (best === null || Math.abs(curve.x[i] - at) < Math.abs(best - at))) {
      best = curve.x[i];
    }
  }
  return best;
}
