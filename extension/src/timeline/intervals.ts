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
    let { begins, ends } = this;
    if (!this.isOrdered) {
      // Which end belongs to which begin does not matter to a union.
      begins = begins.slice(0, this.length).sort();
      ends = ends.slice(0, this.length).sort();
    }
    const out = room(2 * this.length);
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

  /** The union, and begin again with the memory that is there. */
  take(): Intervals {
    const made = this.length ? this.union() : NONE;
    this.length = 0;
    this.isOrdered = true;
    return made;
  }
}

/** Which instants a combination keeps: bits for those only in a, only in b, and in both. */
const ONLY_A = 0b0010;
const ONLY_B = 0b0100;
const BOTH = 0b1000;

export function union(a: Intervals, b: Intervals): Intervals {
  return a.length && b.length ? combine(a, b, ONLY_A | ONLY_B | BOTH) : a.length ? a : b;
}

export function intersection(a: Intervals, b: Intervals): Intervals {
  return a.length && b.length ? combine(a, b, BOTH) : NONE;
}

/** The instants of `a` that are not in `b`. */
export function without(a: Intervals, b: Intervals): Intervals {
  return a.length && b.length ? combine(a, b, ONLY_A) : a;
}

/** How long they are together. */
export function lengthOf(intervals: Intervals): number {
  let length = 0;
  for (let i = 0; i < intervals.length; i += 2) {
    length += intervals[i + 1] - intervals[i];
  }
  return length;
}

/** Answers how long [begin, end) is in some intervals, quickly for many of them. */
export class Measure {
  /** How long the intervals before each one are together. */
  private before: Float64Array;

  constructor(private intervals: Intervals) {
    this.before = new Float64Array(intervals.length / 2 + 1);
    for (let i = 0; i < intervals.length / 2; i++) {
      this.before[i + 1] = this.before[i] + intervals[2 * i + 1] - intervals[2 * i];
    }
  }

  of(others: Intervals): number {
    let length = 0;
    for (let i = 0; i < others.length; i += 2) {
      length += this.until(others[i + 1]) - this.until(others[i]);
    }
    return length;
  }

  private until(t: number): number {
    const { intervals } = this;
    let low = 0;
    let high = intervals.length / 2;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (intervals[2 * middle] < t) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low === 0 ? 0 : this.before[low] - Math.max(0, intervals[2 * low - 1] - t);
  }
}

function combine(a: Intervals, b: Intervals, kept: number): Intervals {
  const out = room(a.length + b.length);
  let length = 0;
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    const nextA = i < a.length ? a[i] : Infinity;
    const nextB = j < b.length ? b[j] : Infinity;
    if (nextA <= nextB) {
      i++;
    }
    if (nextB <= nextA) {
      j++;
    }
    // After an odd number of edges one is inside.
    if (((kept >> ((i & 1) | ((j & 1) << 1))) & 1) !== (length & 1)) {
      out[length++] = Math.min(nextA, nextB);
    }
  }
  return out.slice(0, length);
}

let scratch = NONE;

/** Memory to write a result in before its length is known. */
function room(length: number): Float64Array {
  if (scratch.length < length) {
    scratch = new Float64Array(2 * length);
  }
  return scratch;
}

function twice(from: Float64Array): Float64Array {
  const into = new Float64Array(2 * from.length);
  into.set(from);
  return into;
}
