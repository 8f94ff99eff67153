/** The spans of a run as its ranks reported them: the source of all that is derived from them. */
import type { RankInfo, SpanName, SpansEvent } from '../schema';
import { trans } from '../translation';
import { GrowingColumns, type Columns } from './columns';
import type { Range } from './range';

export type { Columns } from './columns';

/** Maximum distance of a span from the run's start: ten years, in microseconds. */
export const FARTHEST = 315_576_000_000_000;
/** From here on, not every whole number can be represented. */
const EXACT = 2 ** 53;

/** Rankroom's own categories, in the order of the lanes; those of other programs follow. */
export const CATEGORIES = ['cell', 'setup', 'import', 'step', 'data', 'user', 'wait', 'collective', 'phase', 'op', 'kernel', 'unrecorded'];

/** Return the label of a category; one of another program is returned unchanged. */
export function catName(cat: string): string {
  const names = new Map([
    ['cell', trans.__('cell')],
    ['setup', trans.__('set-up')],
    ['import', trans.__('import')],
    ['step', trans.__('step')],
    ['data', trans.__('data')],
    ['user', trans.__('user')],
    ['wait', trans.__('wait')],
    ['collective', trans.__('collective')],
    ['phase', trans.__('phase')],
    ['op', trans.__('op')],
    ['kernel', trans.__('kernel')],
    ['unrecorded', trans.__('not recorded')]
  ]);
  return names.get(cat) ?? cat;
}

export const UNKNOWN: SpanName = { name: '?' };
const UNDEFINED = 0xffff_ffff;

/** Columns that are sorted by start. */
export interface OrderedColumns extends Columns {
  /** Changes whenever earlier spans move, in index or in time. */
  readonly order: number;
}

export interface SpanSource {
  /** Ranks that have spans, ascending. */
  readonly ranks: number[];
  /** The categories of a rank's spans, in the order of the lanes. */
  cats(rank: number): string[];
  /** Sorted by start, on the run's clock. */
  columns(rank: number, cat: string): OrderedColumns;
  name(rank: number, number: number): SpanName;
  /** Changes whenever the spans or their names change. */
  readonly version: number;
  /** Number of invalid spans, by reason. */
  readonly dropped: Map<string, number>;
  /** Number of spans; in an overview, of those that it summarizes. */
  readonly count: number;
  /** From the first start to the last end of all spans. */
  readonly extent: Range | null;
  /** Whether collectives are already split into waits and transfers. */
  readonly isCut: boolean;
}

interface RankSpans {
  names: Map<number, SpanName>;
  lanes: Map<string, GrowingColumns>;
  offset: number;
}

export class Spans implements SpanSource {
  version = 0;
  count = 0;
  readonly isCut = false;
  readonly dropped = new Map<string, number>();
  private byRank = new Map<number, RankSpans>();
  private offsets = new Map<number, number>();

  get ranks(): number[] {
    return [...this.byRank].filter(([, { lanes }]) => lanes.size > 0).map(([rank]) => rank).sort((a, b) => a - b);
  }

  cats(rank: number): string[] {
    return inLaneOrder([...(this.byRank.get(rank)?.lanes.keys() ?? [])]);
  }

  columns(rank: number, cat: string): GrowingColumns {
    return this.byRank.get(rank)?.lanes.get(cat)?.sort() ?? new GrowingColumns();
  }

  get extent(): Range | null {
    let [from, to] = [Infinity, -Infinity];
    for (const { lanes } of this.byRank.values()) {
      lanes.forEach(lane => {
        from = Math.min(from, lane.first);
        to = Math.max(to, lane.reach);
      });
    }
    return from <= to ? { from, to } : null;
  }

  name(rank: number, number: number): SpanName {
    return this.byRank.get(rank)?.names.get(number) ?? UNKNOWN;
  }

  /** Set the ranks and their clock offsets, which each new run.json may change. */
  setClocks(ranks: readonly RankInfo[]): void {
    for (const { rank, clock } of ranks) {
      const offset = offsetOf(clock);
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

  /** Return by how many microseconds a rank's clock is ahead of the run's. */
  offset(rank: number): number {
    return this.offsets.get(rank) ?? 0;
  }

  /** Add the valid spans of an event, as defined in docs/profile-rules.md. */
  take(event: SpansEvent): void {
    const { rank, name, start, dur } = event;
    const longest = Math.max(name.length, start.length, dur.length);
    if (!this.offsets.has(rank)) {
      this.drop('rank', longest);
      return;
    }
    const spans = this.of(rank);
    define(spans.names, event);
    this.version += 1;
    if (name.length !== longest || start.length !== longest || dur.length !== longest) {
      this.drop('length', longest);
    } else if (longest > 0) {
      this.add(spans, event);
    }
  }

  private add(spans: RankSpans, { cat, name, start, dur }: SpansEvent): void {
    const lane = spans.lanes.get(cat) ?? new GrowingColumns();
    const before = lane.length;
    lane.reserve(start.length);
    let t = 0;
    for (let i = 0; i < start.length; i++) {
      const by = start[i];
      const lasts = dur[i];
      t += by;
      if (!Number.isInteger(by) || Math.abs(by) >= EXACT || Math.abs(t) >= EXACT) {
        // The positions of the remaining spans are unknown.
        this.drop(Number.isInteger(by) ? 'far' : 'number', start.length - i);
        break;
      }
      if (!Number.isInteger(lasts)) {
        this.drop('number', 1);
      } else if (lasts < 0) {
        this.drop('negative', 1);
      } else if (Math.abs(t) > FARTHEST || Math.abs(t + lasts) > FARTHEST) {
        this.drop('far', 1);
      } else if (!Number.isInteger(name[i])) {
        this.drop('name', 1);
      } else {
        lane.add(t - spans.offset, lasts, name[i] < 0 || name[i] > UNDEFINED ? UNDEFINED : name[i]);
      }
    }
    if (lane.length > 0) {
      spans.lanes.set(cat, lane);
    }
    this.count += lane.length - before;
  }

  private of(rank: number): RankSpans {
    let spans = this.byRank.get(rank);
    if (!spans) {
      spans = { names: new Map(), lanes: new Map(), offset: this.offsets.get(rank) ?? 0 };
      this.byRank.set(rank, spans);
    }
    return spans;
  }

  private drop(reason: string, count: number): void {
    this.dropped.set(reason, (this.dropped.get(reason) ?? 0) + count);
  }
}

/** Return the offset of a rank's clock in microseconds; 0 if it is unknown, or more than ten years. */
export function offsetOf(clock: RankInfo['clock']): number {
  const offset = clock?.offset ?? 0;
  return Number.isFinite(offset) && Math.abs(offset) <= FARTHEST ? offset : 0;
}

/** Sort categories in place, in the order of their lanes. */
export function inLaneOrder(cats: string[]): string[] {
  return cats.sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
}

/** Return a category's place in the order of the lanes. */
export function place(cat: string): number {
  const at = CATEGORIES.indexOf(cat);
  return at < 0 ? CATEGORIES.length : at;
}

/** The schema's type checks for the arguments that other code relies on. */
const SOUND: { [arg: string]: (value: unknown) => boolean } = {
  op: isString,
  tensor: isString,
  library: isString,
  group: isString,
  ranks: value => Array.isArray(value) && value.every(Number.isInteger),
  bytes: value => Number.isInteger(value) && Number(value) >= 0
};

function define(names: Map<number, SpanName>, { from = 0, define }: SpansEvent): void {
  if (!Array.isArray(define) || !Number.isInteger(from) || from < 0) {
    return;
  }
  define.forEach((name: unknown, i) => {
    if (typeof name === 'object' && name !== null && isString((name as SpanName).name)) {
      names.set(from + i, sound(name as SpanName));
    }
  });
}

/** Remove arguments of the wrong type. */
function sound(name: SpanName): SpanName {
  const isSound = Object.keys(SOUND).every(arg => !(arg in name) || SOUND[arg](name[arg]));
  return isSound
    ? name
    : (Object.fromEntries(Object.entries(name).filter(([arg, value]) => !(arg in SOUND) || SOUND[arg](value))) as SpanName);
}

function isString(value: unknown): value is string {
  return typeof value === 'string';
}
