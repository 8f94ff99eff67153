/** Spans of one rank and category in growing typed arrays, sorted by start when they are read. */

const FIRST = 256;
const GROWTH = 1.5;
/** Insertion sort steps per span before switching to a merge sort. */
const PATIENCE = 8;

/** Only the first `length` elements are valid; the arrays may be longer. Times are in microseconds of the run. */
export interface Columns {
  start: Float64Array;
  dur: Float64Array;
  /** Indices in the rank's table of names. */
  name: Uint32Array;
  length: number;
  /** Covered microseconds of each span, if spans may stand for several; if undefined, spans are fully covered. */
  busy?: Float64Array;
}

export class GrowingColumns implements Columns {
  start = new Float64Array(FIRST);
  dur = new Float64Array(FIRST);
  name = new Uint32Array(FIRST);
  length = 0;
  /** The first start and the last end. */
  first = Infinity;
  reach = -Infinity;
  /** Changes whenever spans that were already sorted move, in index or in time. */
  order = 0;
  private sorted = 0;

  add(start: number, dur: number, name: number): void {
    const at = this.length++;
    this.start[at] = start;
    this.dur[at] = dur;
    this.name[at] = name;
    this.first = Math.min(this.first, start);
    this.reach = Math.max(this.reach, start + dur);
  }

  /** Grow the arrays to hold `more` further spans. */
  reserve(more: number): void {
    const needed = this.length + more;
    if (needed > this.start.length) {
      const room = Math.ceil(Math.max(needed, GROWTH * this.start.length));
      this.start = grown(this.start, new Float64Array(room));
      this.dur = grown(this.dur, new Float64Array(room));
      this.name = grown(this.name, new Uint32Array(room));
    }
  }

  /** Move all spans by `by` microseconds. */
  shift(by: number): void {
    for (let i = 0; i < this.length; i++) {
      this.start[i] += by;
    }
    this.first += by;
    this.reach += by;
    this.order += 1;
  }

  /** Sort the spans added since the last call into place. The sort is stable. */
  sort(): this {
    let steps = PATIENCE * (this.length - this.sorted) + PATIENCE;
    const { start, dur, name } = this;
    for (let i = Math.max(1, this.sorted); i < this.length; i++) {
      if (start[i - 1] <= start[i]) {
        continue; // in place already, as nearly all are
      }
      const [t, d, n] = [start[i], dur[i], name[i]];
      let to = i;
      for (; to > 0 && start[to - 1] > t; to--) {
        start[to] = start[to - 1];
        dur[to] = dur[to - 1];
        name[to] = name[to - 1];
      }
      start[to] = t;
      dur[to] = d;
      name[to] = n;
      if (to < this.sorted) {
        this.order += 1;
      }
      steps -= i - to;
      if (steps < 0) {
        this.mergeRuns();
        break;
      }
    }
    this.sorted = this.length;
    return this;
  }

  /** Merge ascending sequences (usually one per event) in pairs until one is left. */
  private mergeRuns(): void {
    const { length, start, dur, name } = this;
    let [places, merged] = [new Uint32Array(length), new Uint32Array(length)];
    let runs: number[] = [];
    for (let i = 0; i < length; i++) {
      places[i] = i;
      if (i === 0 || start[i] < start[i - 1]) {
        runs.push(i);
      }
    }
    while (runs.length > 1) {
      for (let run = 0; run < runs.length; run += 2) {
        const [middle, end] = [runs[run + 1] ?? length, runs[run + 2] ?? length];
        for (let a = runs[run], b = middle, to = a; to < end; to++) {
          merged[to] = b >= end || (a < middle && start[places[a]] <= start[places[b]]) ? places[a++] : places[b++];
        }
      }
      [places, merged] = [merged, places];
      runs = runs.filter((_, i) => i % 2 === 0);
    }
    this.start = ordered(start, places);
    this.dur = ordered(dur, places);
    this.name = ordered(name, places);
    this.order += 1;
  }
}

function ordered<T extends Float64Array | Uint32Array>(from: T, places: Uint32Array): T {
  const into = from.slice() as T;
  for (let i = 0; i < places.length; i++) {
    into[i] = from[places[i]];
  }
  return into;
}

function grown<T extends Float64Array | Uint32Array>(from: T, into: T): T {
  into.set(from);
  return into;
}
