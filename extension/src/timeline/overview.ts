/** The server's overview of a long run, shown while the run's spans are being read. */
import { linesOf } from '../record';
import type { OverviewHead, OverviewLane, SpanName } from '../schema';
import type { Range } from './range';
import { inLaneOrder, UNKNOWN, type OrderedColumns, type SpanSource } from './spans';

interface RankLanes {
  names: Map<number, SpanName>;
  lanes: Map<string, OrderedColumns>;
}

const NONE: OrderedColumns = columnsOf({ start: [], dur: [], name: [], busy: [] });

export class Overview implements SpanSource {
  readonly version = -1;
  readonly isCut = true;
  readonly count: number;
  readonly dropped: Map<string, number>;
  private byRank = new Map<number, RankLanes>();
  private from = Infinity;
  private to = -Infinity;

  /** Parse the server's reply, one lane per step; return null if the run has no overview. */
  static *read(text: string): Generator<void, Overview | null> {
    const [head, ...lanes] = linesOf(text);
    if (!head) {
      return null;
    }
    const made = new Overview(JSON.parse(head) as OverviewHead);
    for (const line of lanes) {
      made.take(JSON.parse(line) as OverviewLane);
      yield;
    }
    return made;
  }

  private constructor({ spans, dropped }: OverviewHead) {
    this.count = spans;
    this.dropped = new Map(Object.entries(dropped));
  }

  get ranks(): number[] {
    return [...this.byRank.keys()].sort((a, b) => a - b);
  }

  cats(rank: number): string[] {
    return inLaneOrder([...(this.byRank.get(rank)?.lanes.keys() ?? [])]);
  }

  columns(rank: number, cat: string): OrderedColumns {
    return this.byRank.get(rank)?.lanes.get(cat) ?? NONE;
  }

  name(rank: number, number: number): SpanName {
    return this.byRank.get(rank)?.names.get(number) ?? UNKNOWN;
  }

  get extent(): Range | null {
    const { from, to } = this;
    return from <= to ? { from, to } : null;
  }

  private take(lane: OverviewLane): void {
    if (lane.start.length === 0) {
      return;
    }
    const known = this.byRank.get(lane.rank) ?? { names: new Map<number, SpanName>(), lanes: new Map<string, OrderedColumns>() };
    this.byRank.set(lane.rank, known);
    lane.define.forEach((name, i) => known.names.set(lane.from + i, name));
    const columns = columnsOf(lane);
    known.lanes.set(lane.cat, columns);
    this.from = Math.min(this.from, columns.start[0]);
    columns.start.forEach((start, i) => (this.to = Math.max(this.to, start + columns.dur[i])));
  }
}

function columnsOf({ start, dur, name, busy }: Pick<OverviewLane, 'start' | 'dur' | 'name' | 'busy'>): OrderedColumns {
  const starts = new Float64Array(start.length);
  let t = 0;
  for (let i = 0; i < start.length; i++) {
    starts[i] = t += start[i];
  }
  return {
    start: starts, dur: Float64Array.from(dur), name: Uint32Array.from(name), length: start.length, order: 0,
    busy: busy.length ? Float64Array.from(busy) : undefined
  };
}
