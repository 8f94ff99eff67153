/** Sets of instants: half-open intervals in ascending order that do not touch, as begin, end, begin, … */
export type Intervals = Float64Array;

const NONE = new Float64Array(0);

/** The union of intervals that come one by one, cut to [from, to); mostly in order. */
export class Gathering {
  private begins = new Float64Array(64);
  private ends = new Float64Array(64);
  private length = 0;
  private isOrdered = true;

  constructor(
    private from: number,
    private to: number
  ) {}

  add(begin: number, end: number): void {
    begin = Math.max(begin, this.from);
    end = Math.min(end, this.to);
    if (begin >= end) {
      return;
    }
    const last = this.length - 1;
    if (last >= 0 && begin >= this.begins[last] && begin <= this.ends[last]) {
      this.ends[last] = Math.max(this.ends[last], end);
      return;
    }
    this.isOrdered &&= last < 0 || begin > this.begins[last];
    if (this.length === this.begins.length) {
      this.begins = twice(this.begins);
      this.ends = twice(this.ends);
    }
    this.begins[this.length] = begin;
    this.ends[this.length++] = end;
  }

  union(): Intervals {
    const begins = this.begins.slice(0, this.length);
    const ends = this.ends.slice(0, this.length);
    if (!this.isOrdered) {
      // Which end belongs to which begin does not matter to a union.
      begins.sort();
      ends.sort();
    }
    const out = new Float64Array(2 * this.length);
    let length = 0;
    for (let i = 0; i < this.length; i++) {
      if (length > 0 && begins[i] <= out[length - 1]) {
        out[length - 1] = Math.max(out[length - 1], ends[i]);
      } else {
        out[length++] = begins[i];
        out[length++] = ends[i];
      }
    }
    return out.slice(0, length);
  }
}

export function union(a: Intervals, b: Intervals): Intervals {
  return a.length && b.length ? combine(a, b, (inA, inB) => inA || inB) : a.length ? a : b;
}

export function intersection(a: Intervals, b: Intervals): Intervals {
  return a.length && b.length ? combine(a, b, (inA, inB) => inA && inB) : NONE;
}

/** The instants of `a` that are not in `b`. */
export function without(a: Intervals, b: Intervals): Intervals {
  return a.length && b.length ? combine(a, b, (inA, inB) => inA && !inB) : a;
}

/** How long they are together. */
export function lengthOf(intervals: Intervals): number {
  let length = 0;
  for (let i = 0; i < intervals.length; i += 2) {
    length += intervals[i + 1] - intervals[i];
  }
  return length;
}

function combine(a: Intervals, b: Intervals, keeps: (inA: boolean, inB: boolean) => boolean): Intervals {
  const out = new Float64Array(a.length + b.length);
  let length = 0;
  let i = 0;
  let j = 0;
  let isIn = false;
  while (i < a.length || j < b.length) {
    const t = Math.min(i < a.length ? a[i] : Infinity, j < b.length ? b[j] : Infinity);
    i += a[i] === t ? 1 : 0;
    j += b[j] === t ? 1 : 0;
    // After an odd number of edges one is inside.
    if (keeps(i % 2 === 1, j % 2 === 1) !== isIn) {
      isIn = !isIn;
      out[length++] = t;
    }
  }
  return out.slice(0, length);
}

function twice(from: Float64Array): Float64Array {
  const into = new Float64Array(2 * from.length);
  into.set(from);
  return into;
}
