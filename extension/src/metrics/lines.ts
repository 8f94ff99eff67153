/** The lines of a plot: a curve for each rank, or one for the mean of ranks with their spread around it. */
import type { Range } from '../timeline/range';
import type { Curve, Metric } from './answer';
import { inSight, overRanks, smoothed } from './curves';

/** Mean and spread are shown of more ranks than these, unless the reader wants otherwise. */
export const CURVES = 16;

export interface Line {
  /** Null for the mean of several ranks, and of other runs. */
  rank: number | null;
  /** Which of the runs that this one is compared with; none for this run. */
  other?: number;
  curve: Curve;
  /** Drawn instead of the mean of each bucket, which is pale then. */
  smooth: Float64Array | null;
  /** Whether lowest and highest say more than the line does. */
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

/** The lines of the runs that this one is compared with: of each the mean of its ranks, and their spread. */
export function linesOfOthers(metrics: ReadonlyArray<Metric | null>, smoothing: number): Line[] {
  return metrics.flatMap((metric, other) => {
    const lines = metric ? linesOf(metric, { ranks: null, isMean: true, smoothing }) : [];
    return lines.map(line => ({ ...line, rank: null, other }));
  });
}

/** The lowest and the highest value to be seen in a range; Infinity and -Infinity if there is none. */
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

/** The next place after this one, or before it, of places that ascend; the last that way where there is none. */
export function nextPlace(places: readonly number[], from: number | null, step: 1 | -1): number | undefined {
  const ahead = step > 0 ? places : [...places].reverse();
  return ahead.find(place => from === null || step * (place - from) > 0) ?? ahead[ahead.length - 1];
}

/** The place nearest to this one where any of the lines has a bucket; null if none has. */
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
