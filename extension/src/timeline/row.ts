/**
 * A row of spans that do not overlap, with a hierarchy of blocks over them. What is narrower than a pixel
 * is painted as one block, so that the cost of painting depends on the pixels and not on the spans.
 */
import { lowerBound } from '../lowerbound';
import type { Columns } from './columns';

const LEAF = 8;
const FAN = 4;
/** Blocks of spans built per step. */
const STEP = 2048;

interface Level {
  start: Float64Array;
  end: Float64Array;
  /** Covered microseconds. */
  busy: Float64Array;
  /** The name of the longest span; on higher levels, of the busiest block below. */
  name: Uint32Array;
}

export class Row {
  readonly length: number;
  private levels: Level[] | null = null;

  /** `places` are indices in the columns, ascending; null for all. */
  constructor(
    readonly columns: Columns,
    readonly places: Uint32Array | null = null,
    /** If the columns hold parts of spans, the index of the span that each is part of. */
    readonly owners: Uint32Array | null = null
  ) {
    this.length = places ? places.length : columns.length;
  }

  /** Return the index of the i-th span in the columns. */
  place(i: number): number {
    return this.places ? this.places[i] : i;
  }

  start(i: number): number {
    return this.columns.start[this.place(i)];
  }

  end(i: number): number {
    const at = this.place(i);
    return this.columns.start[at] + this.columns.dur[at];
  }

  name(i: number): number {
    return this.columns.name[this.place(i)];
  }

  /** The end of the last span. */
  get reach(): number {
    return this.length ? this.end(this.length - 1) : -Infinity;
  }

  /** Return the first span that starts at `t` or later. */
  after(t: number): number {
    return lowerBound(this.length, i => this.start(i), t);
  }

  /** Return the span at `t`, or the nearest within `slack`; -1 if there is none. */
  at(t: number, slack: number): number {
    const next = this.after(t + slack);
    let found = -1;
    let nearest = slack;
    for (let i = next - 1; i >= Math.max(0, next - 64); i--) {
      const distance = Math.max(0, this.start(i) - t, t - this.end(i));
      if (distance < nearest || (distance === 0 && found < 0)) {
        nearest = distance;
        found = i;
      }
      if (this.end(i) < t - slack) {
        break;
      }
    }
    return found;
  }

  /** The levels of blocks, from blocks of a few spans to the one block of all. */
  get blocks(): Level[] {
    const steps = this.build();
    while (!this.levels) {
      steps.next();
    }
    return this.levels;
  }

  /** Build the blocks in steps, if they are not built yet. */
  *build(): Generator<void> {
    if (this.levels) {
      return;
    }
    let level = makeLevel(Math.ceil(this.length / LEAF));
    for (let block = 0; block < level.start.length; block += STEP) {
      this.fill(level, block, Math.min(block + STEP, level.start.length));
      yield;
    }
    const levels = [level];
    while (level.start.length > 1) {
      levels.push((level = above(level)));
    }
    this.levels = levels;
  }

  static readonly leaf = LEAF;
  static readonly fan = FAN;

  /** Fill some of the lowest level's blocks. */
  private fill(level: Level, from: number, to: number): void {
    const { start, dur, name, busy: covered } = this.columns;
    for (let block = from; block < to; block++) {
      const first = block * LEAF;
      const last = Math.min(first + LEAF, this.length);
      let [end, busy, longest, named] = [-Infinity, 0, -1, 0];
      for (let i = first; i < last; i++) {
        const at = this.places ? this.places[i] : i;
        const lasts = dur[at];
        busy += covered ? covered[at] : lasts;
        if (start[at] + lasts > end) {
          end = start[at] + lasts;
        }
        if (lasts > longest) {
          longest = lasts;
          named = name[at];
        }
      }
      level.start[block] = this.start(first);
      level.end[block] = end;
      level.busy[block] = busy;
      level.name[block] = named;
    }
  }
}

function makeLevel(length: number): Level {
  return {
    start: new Float64Array(length),
    end: new Float64Array(length),
    busy: new Float64Array(length),
    name: new Uint32Array(length)
  };
}

function above(below: Level): Level {
  const level = makeLevel(Math.ceil(below.start.length / FAN));
  for (let block = 0; block < level.start.length; block++) {
    const first = block * FAN;
    const last = Math.min(first + FAN, below.start.length);
    let [end, most] = [-Infinity, -1];
    for (let i = first; i < last; i++) {
      end = Math.max(end, below.end[i]);
      level.busy[block] += below.busy[i];
      if (below.busy[i] > most) {
        most = below.busy[i];
        level.name[block] = below.name[i];
      }
    }
    level.start[block] = below.start[first];
    level.end[block] = end;
  }
  return level;
}

/** Maximum number of rows; spans nested deeper share the last one. */
const MOST_ROWS = 128;

/** Stack the spans at `places`, or all, in rows without overlap; each span goes to the first row where it fits. */
export function stack(columns: Columns, places: Uint32Array | null = null): Row[] {
  const { start, dur } = columns;
  const length = places ? places.length : columns.length;
  const ends: number[] = [];
  const counts: number[] = [];
  const rowOf = new Uint8Array(length);
  for (let i = 0; i < length; i++) {
    const at = places ? places[i] : i;
    let row = 0;
    while (row < ends.length && ends[row] > start[at]) {
      row += 1;
    }
    row = Math.min(row, MOST_ROWS - 1);
    ends[row] = Math.max(ends[row] ?? -Infinity, start[at] + dur[at]);
    counts[row] = (counts[row] ?? 0) + 1;
    rowOf[i] = row;
  }
  if (counts.length <= 1) {
    return length ? [new Row(columns, places)] : [];
  }
  const rows = counts.map(count => new Uint32Array(count));
  const filled = counts.map(() => 0);
  for (let i = 0; i < length; i++) {
    rows[rowOf[i]][filled[rowOf[i]]++] = places ? places[i] : i;
  }
  return rows.map(own => new Row(columns, own));
}

/** Return a row of the spans that are marked; `isMarked` takes a span's index in the columns. */
export function marked(row: Row, isMarked: (place: number) => boolean): Row {
  const places = new Uint32Array(row.length);
  let count = 0;
  for (let i = 0; i < row.length; i++) {
    const place = row.place(i);
    if (isMarked(place)) {
      places[count++] = place;
    }
  }
  return new Row(row.columns, places.subarray(0, count), row.owners);
}
