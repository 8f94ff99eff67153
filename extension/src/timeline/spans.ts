/** The spans of a run as its ranks reported them, for all that is derived from them. */
import type { RankInfo, SpanName, SpansEvent } from '../schema';
import { trans } from '../translation';
import { GrowingColumns, type Columns } from './columns';
import type { Range } from './range';

export type { Columns } from './columns';

/** Farther than this from the run's start no span can be: ten years, in microseconds. */
export const FARTHEST = 315_576_000_000_000;
/** Farther than this a number does not hold each microsecond. */
const EXACT = 2 ** 53;

/** The categories of ours, in the order of the lanes; those of other programs come after them. */
export const CATEGORIES = ['cell', 'setup', 'import', 'step', 'data', 'user', 'wait', 'collective', 'phase', 'op', 'kernel', 'unrecorded'];

/** A category as people read it; one of another program as it is. */
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
  /** Differs whenever spans that were there before are elsewhere now. */
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
  /** Differs whenever there is more, or other. */
  readonly version: number;
  /** Spans that made no sense, by reason. */
  readonly dropped: Map<string, number>;
  /** Spans that it shows. */
  readonly count: number;
  /** From the first start to the last end of all spans. */
  readonly extent: Range | null;
  /** Whether collectives are in it as waits and transfers, each for itself. */
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

  /** Which ranks there are and what their clocks differ by; known again with each run.json. */
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

  /** Microseconds that a rank's own clock is ahead of the run's. */
  offset(rank: number): number {
    return this.offsets.get(rank) ?? 0;
  }

  /** Take in the sound spans of an event; docs/profile-rules.md says which those are. */
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
        // Where the rest is, is unknown.
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

/** Categories as their lanes are below each other. */
export function inLaneOrder(cats: string[]): string[] {
  return cats.sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
}

/** Where a category stands among the lanes. */
export function place(cat: string): number {
  const at = CATEGORIES.indexOf(cat);
  return at < 0 ? CATEGORIES.length : at;
}

/** What the schema says of arguments that others rely on. */
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

/** Without arguments that are not what they must be. */
function sound(name: SpanName): SpanName {
  const isSound = Object.keys(SOUND).every(arg => !(arg in name) || SOUND[arg](name[arg]));
  return isSound
    ? name
    : (Object.fromEntries(Object.entries(name).filter(([arg, value]) => !(arg in SOUND) || SOUND[arg](value))) as SpanName);
}

function isString(value: unknown): value is string {
  return typeof value === 'string';
}
