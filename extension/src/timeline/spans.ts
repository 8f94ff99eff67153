/** The spans of a run as its ranks reported them, for all that is derived from them. */
import type { RankInfo, SpanName, SpansEvent } from '../schema';
import { GrowingColumns, type Columns } from './columns';

export type { Columns } from './columns';

/** Farther than this from the run's start no span can be: ten years, in microseconds. */
export const FARTHEST = 10 * 365 * 86_400 * 1e6;

/** The categories of ours, in the order of the lanes; those of other programs come after them. */
export const CATEGORIES = ['cell', 'step', 'data', 'user', 'wait', 'collective', 'phase', 'op', 'kernel'];

const UNKNOWN: SpanName = { name: '?' };
const UNDEFINED = 0xffff_ffff;

export interface SpanSource {
  /** Ranks that have spans, ascending. */
  readonly ranks: number[];
  /** The categories of a rank's spans, in the order of the lanes. */
  cats(rank: number): string[];
  /** Sorted by start, on the run's clock. */
  columns(rank: number, cat: string): Columns;
  name(rank: number, number: number): SpanName;
  /** Differs whenever there is more, or other. */
  readonly version: number;
  /** Spans that made no sense, by reason. */
  readonly dropped: Map<string, number>;
}

interface RankSpans {
  names: Map<number, SpanName>;
  lanes: Map<string, GrowingColumns>;
  offset: number;
}

export class Spans implements SpanSource {
  version = 0;
  /** Spans that are here. */
  count = 0;
  readonly dropped = new Map<string, number>();
  private byRank = new Map<number, RankSpans>();
  private offsets = new Map<number, number>();

  get ranks(): number[] {
    return [...this.byRank.keys()].sort((a, b) => a - b);
  }

  cats(rank: number): string[] {
    return [...(this.byRank.get(rank)?.lanes.keys() ?? [])].sort(
      (a, b) => place(a) - place(b) || (a < b ? -1 : 1)
    );
  }

  columns(rank: number, cat: string): GrowingColumns {
    return this.byRank.get(rank)?.lanes.get(cat)?.sort() ?? new GrowingColumns();
  }

  name(rank: number, number: number): SpanName {
    return this.byRank.get(rank)?.names.get(number) ?? UNKNOWN;
  }

  /** What the ranks' clocks differ by; known anew with each run.json. */
  setClocks(ranks: readonly RankInfo[]): void {
    for (const { rank, clock } of ranks) {
      const offset = Number.isFinite(clock?.offset) ? clock!.offset : 0;
      const before = this.offsets.get(rank) ?? 0;
      this.offsets.set(rank, offset);
      const spans = this.byRank.get(rank);
      if (spans && offset !== before) {
        spans.offset = offset;
        spans.lanes.forEach(lane => lane.shift(before - offset));
        this.version += 1;
      }
    }
  }

  take(event: SpansEvent): void {
    const { name, start, dur } = event;
    const length = start.length;
    const spans = this.of(event.rank);
    this.define(spans, event);
    if (name.length !== length || dur.length !== length) {
      this.drop('columns of unequal length', Math.max(name.length, length, dur.length));
      return;
    }
    if (length === 0) {
      return;
    }
    let lane = spans.lanes.get(event.cat);
    if (!lane) {
      lane = new GrowingColumns();
      spans.lanes.set(event.cat, lane);
    }
    lane.reserve(length);
    const before = lane.length;
    let t = -spans.offset;
    for (let i = 0; i < length; i++) {
      const by = start[i];
      const lasts = dur[i];
      if (!Number.isSafeInteger(by) || !Number.isSafeInteger(lasts)) {
        this.drop('time that is no whole number', 1);
        continue;
      }
      t += by;
      if (lasts < 0) {
        this.drop('negative duration', 1);
      } else if (Math.abs(t) > FARTHEST || lasts > FARTHEST) {
        this.drop('time far from the run', 1);
      } else if (!Number.isSafeInteger(name[i])) {
        this.drop('name that is no number', 1);
      } else {
        lane.add(t, lasts, name[i] < 0 || name[i] > UNDEFINED ? UNDEFINED : name[i]);
      }
    }
    if (lane.length === 0) {
      spans.lanes.delete(event.cat);
    }
    this.count += lane.length - before;
    this.version += 1;
  }

  private of(rank: number): RankSpans {
    let spans = this.byRank.get(rank);
    if (!spans) {
      spans = { names: new Map(), lanes: new Map(), offset: this.offsets.get(rank) ?? 0 };
      this.byRank.set(rank, spans);
    }
    return spans;
  }

  private define(spans: RankSpans, { from, define }: SpansEvent): void {
    if (!Array.isArray(define) || !Number.isSafeInteger(from)) {
      return;
    }
    define.forEach((name, i) => {
      const is = typeof name === 'object' && name !== null && typeof name.name === 'string';
      spans.names.set(Number(from) + i, is ? name : UNKNOWN);
    });
  }

  private drop(reason: string, count: number): void {
    this.dropped.set(reason, (this.dropped.get(reason) ?? 0) + count);
    this.version += 1;
  }
}

/** Where a category stands among the lanes. */
function place(cat: string): number {
  const at = CATEGORIES.indexOf(cat);
  return at < 0 ? CATEGORIES.length : at;
}
