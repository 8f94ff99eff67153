/** The server's reply about the metrics of a run, converted for drawing: columns of numbers, NaN for gaps. */
import type { RunState } from '../schema';

/** A metric that at least one rank reported. */
export interface NameInfo {
  name: string;
  ranks: number[];
  /** The largest number of points that one rank has. */
  points: number;
  /** The first and the last step. */
  steps: [number, number];
  /** The first and the last time, in microseconds since the run's start. */
  t: [number, number];
}

type Values = ReadonlyArray<number | null>;

interface Columns {
  name: string;
  x: number[];
  mean: Values;
  low: Values;
  high: Values;
  /** Points in each bucket, finite or not; over several ranks, points per rank. */
  count: number[];
}

export type BadValue = 'NaN' | 'Infinity' | '-Infinity';

/** A value that is not finite, and its place on the x axis. */
export interface Bad {
  x: number;
  value: BadValue;
}

/** The reply as it is received. */
export interface MetricsAnswer {
  state: RunState;
  /** All metrics of the run. */
  names: NameInfo[];
  /** Maximum points per curve: fewer than requested if there are many curves. */
  points: number;
  curves: Array<Columns & { rank: number; bad?: Bad[]; last?: number | BadValue }>;
  over_ranks: Columns[];
  notes: string[];
  /** False if only a coarse copy was used although there is finer data. */
  exact: boolean;
}

/** A curve as buckets of consecutive points; with few points, each bucket is one point. */
export interface Curve {
  /** Steps, or microseconds. */
  x: Float64Array;
  mean: Float64Array;
  low: Float64Array;
  high: Float64Array;
  /** Points in each bucket; over several ranks, points per rank, which may be a fraction. */
  count: Float64Array;
  bad: readonly Bad[];
  /** The last value, which the mean of the last bucket need not be; undefined if it is not known. */
  last?: number | BadValue;
  /** Whether `x` ascends, as it does in the server's replies; steps from elsewhere may go back. */
  isAscending: boolean;
  /** Whether each bucket is a single point. */
  isEachPoint: boolean;
}

export interface RankCurve extends Curve {
  rank: number;
}

/** The data of one metric in a range. */
export interface Metric {
  /** Ascending by rank. */
  ranks: readonly RankCurve[];
  /** Mean, lowest and highest of all ranks; null if only one has the metric. */
  over: Curve | null;
  /** Whether zooming in would show no more detail. */
  isFinest: boolean;
}

export function readAnswer(answer: MetricsAnswer): Map<string, Metric> {
  const found = new Map<string, Metric>();
  for (const name of new Set(answer.curves.map(curve => curve.name))) {
    const ranks = answer.curves
      .filter(curve => curve.name === name)
      .map(({ rank, bad = [], last, ...columns }) => ({ ...curveOf(columns, bad), rank, last }))
      .sort((a, b) => a.rank - b.rank);
    const over = answer.over_ranks.find(each => each.name === name);
    const isFinest = answer.exact && ranks.every(({ isEachPoint }) => isEachPoint);
    found.set(name, { ranks, over: over ? { ...curveOf(over, []), last: meanOfLasts(ranks) } : null, isFinest });
  }
  return found;
}

/** Return the mean of the last values; undefined unless all of them are known and finite. */
export function meanOfLasts(curves: readonly Curve[]): number | undefined {
  const values = curves.flatMap(({ last }) => (typeof last === 'number' ? [last] : []));
  return values.length && values.length === curves.length ? values.reduce((a, b) => a + b) / values.length : undefined;
}

/** Convert columns to a curve whose columns all have the same length, even if the received ones do not. */
export function curveOf({ x, mean, low, high, count }: Omit<Columns, 'name'>, bad: readonly Bad[]): Curve {
  const length = Math.min(x.length, mean.length);
  const places = Float64Array.from(x.slice(0, length));
  const values = numbers(mean, length);
  return {
    x: places,
    mean: values,
    low: low.length === x.length ? numbers(low, length) : values,
    high: high.length === x.length ? numbers(high, length) : values,
    count: count.length === x.length ? Float64Array.from(count.slice(0, length)) : new Float64Array(length).fill(1),
    bad,
    isAscending: places.every((each, i) => i === 0 || each >= places[i - 1]),
    isEachPoint: count.every(each => each <= 1)
  };
}

function numbers(values: Values, length: number): Float64Array {
  return Float64Array.from({ length }, (_, i) => values[i] ?? NaN);
}
