/** What the server answers about the metrics of a run, made ready for drawing: columns of numbers, NaN for gaps. */
import type { RunState } from '../schema';

/** A metric that some rank reported. */
export interface NameInfo {
  name: string;
  ranks: number[];
  /** The most that one rank has. */
  points: number;
  /** The first and the last. */
  steps: [number, number];
  /** Microseconds since the run's start. */
  t: [number, number];
}

type Values = ReadonlyArray<number | null>;

interface Columns {
  name: string;
  x: number[];
  mean: Values;
  low: Values;
  high: Values;
  /** Points in each bucket, finite or not; of several ranks, how many each has. */
  count: number[];
}

export type BadValue = 'NaN' | 'Infinity' | '-Infinity';

/** A value that is no finite number, and where. */
export interface Bad {
  x: number;
  value: BadValue;
}

/** The answer as it comes. */
export interface MetricsAnswer {
  state: RunState;
  /** Every metric that there is. */
  names: NameInfo[];
  /** Of a curve at most: fewer than were asked for where there are many curves. */
  points: number;
  curves: Array<Columns & { rank: number; bad?: Bad[] }>;
  over_ranks: Columns[];
  notes: string[];
  /** False where only a coarse copy was used and there is finer data. */
  exact: boolean;
}

/** Buckets of points that followed one another; where there are few, each is a point. */
export interface Curve {
  /** Steps, or microseconds. */
  x: Float64Array;
  mean: Float64Array;
  low: Float64Array;
  high: Float64Array;
  /** Points in each bucket; of several ranks, how many each has, which may be a part of one. */
  count: Float64Array;
  bad: readonly Bad[];
  /** As the server has them; the steps of other records may go back. */
  isAscending: boolean;
  /** Whether each bucket is a point. */
  isEachPoint: boolean;
}

export interface RankCurve extends Curve {
  rank: number;
}

/** What is known of one metric, in a range. */
export interface Metric {
  /** Ascending by rank. */
  ranks: readonly RankCurve[];
  /** Mean, lowest and highest of all ranks; null where only one has it. */
  over: Curve | null;
  /** Whether a closer look would show no more. */
  isFinest: boolean;
}

export function readAnswer(answer: MetricsAnswer): Map<string, Metric> {
  const found = new Map<string, Metric>();
  for (const name of new Set(answer.curves.map(curve => curve.name))) {
    const ranks = answer.curves
      .filter(curve => curve.name === name)
      .map(({ rank, bad = [], ...columns }) => ({ ...curveOf(columns, bad), rank }))
      .sort((a, b) => a.rank - b.rank);
    const over = answer.over_ranks.find(each => each.name === name);
    const isFinest = answer.exact && ranks.every(({ isEachPoint }) => isEachPoint);
    found.set(name, { ranks, over: over ? curveOf(over, []) : null, isFinest });
  }
  return found;
}

/** Columns of one length, whatever came. */
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
