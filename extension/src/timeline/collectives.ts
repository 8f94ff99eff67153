/** Collectives as the server matched them: which spans belong to one operation, and which rank arrived last. */
import { lowerBound } from '../lowerbound';
import type { Columns } from './columns';
import type { Range } from './range';

/** One collective. Times are in microseconds since the run's start. */
export interface Collective {
  op: string;
  tensor: string;
  library: string;
  group: string;
  /** Number among the collectives with the same op, tensor, library and group, from 0. */
  n: number;
  /** Ranks that took part, ascending. */
  ranks: number[];
  /** For each of `ranks`: when it arrived, when its wait ended and its transfer began, and when it left. */
  starts: number[];
  cuts: number[];
  ends: number[];
  /** The latest arrival, and the rank that arrived then. */
  last: number;
  straggler: number;
  /** Time from the first arrival to the last. */
  spread: number;
  /** Time from the median arrival of the other ranks to the last arrival. */
  cost: number;
  /** Ranks that were expected but did not take part. */
  absent: number[];
  /** Those of `ranks` that failed while they waited for the absent ranks. */
  givenUp: number[];
}

/** The reply of the route `runs/<id>/collectives`. */
export interface CollectivesAnswer {
  keys: Array<Pick<Collective, 'op' | 'tensor' | 'library' | 'group'>>;
  /** For each collective: the index of its key, its straggler, and its cost in microseconds. */
  key: number[];
  straggler: number[];
  cost: number[];
  /** Lists of expected ranks, and for each collective the index of its list; `group` is empty if all use the first. */
  expected: number[][];
  group: number[];
  /** Ranks that ended in a state other than `ok`. */
  failed: number[];
  /**
   * The calls of each rank. `doubt`: how far its times may be off those of other hosts (µs). `check`: XOR of the low
   * 32 bits of all starts. `of`: the index of each call's collective, as the difference from the previous call.
   */
  calls: Array<{ rank: number; doubt: number; check: number; of: number[] }>;
}

/** The source of the spans that the server matched. */
export interface CollectiveSpans {
  columns(rank: number, cat: string): Columns & { readonly order: number };
}

/** Calls processed per step. */
const STEP = 20_000;

/** The collectives of a run in order of their first arrivals. */
export class Collectives {
  readonly length: number;
  /** For each collective: first arrival, last arrival, last end, and the latest end of it and all before it. */
  private firsts: Float64Array;
  private lasts: Float64Array;
  private ends: Float64Array;
  private reach: Float64Array;
  private n: Uint32Array;
  /** The calls, grouped by collective and ordered by rank; those of the i-th start at index `begins[i]`. */
  private begins: Uint32Array;
  private rank: Uint32Array;
  private start: Float64Array;
  private end: Float64Array;
  /** For each rank: the collective of each call, the columns' `order`, the start of the newest call, and `doubt`. */
  private byRank = new Map<number, { of: Uint32Array; order: number; newest: number; doubt: number }>();
  private failed: ReadonlySet<number>;

  /**
   * Assign spans to the collectives that the server matched, in steps, as there may be millions. Return null if the
   * spans are not those that it matched: the server had more or different ones, or they changed in the meantime.
   */
  static *of(answer: CollectivesAnswer, spans: CollectiveSpans): Generator<void, Collectives | null> {
    const found = new Collectives(answer);
    for (const { rank, doubt, check, of } of answer.calls) {
      const { start, length, order } = spans.columns(rank, 'collective');
      let seen = 0;
      for (let i = 0; i < of.length; i++) {
        seen ^= start[i];
      }
      if (of.length > length || seen !== check) {
        return null;
      }
      found.byRank.set(rank, { of: new Uint32Array(of.length), order, newest: start[of.length - 1], doubt });
      yield;
    }
    yield* found.take(spans);
    return answer.calls.every(({ rank }) => found.fits(rank, spans.columns(rank, 'collective'))) ? found : null;
  }

  private constructor(private answer: CollectivesAnswer) {
    this.length = answer.key.length;
    this.failed = new Set(answer.failed);
    this.firsts = new Float64Array(this.length).fill(Infinity);
    this.lasts = new Float64Array(this.length).fill(-Infinity);
    this.ends = new Float64Array(this.length).fill(-Infinity);
    this.reach = new Float64Array(this.length);
    this.n = new Uint32Array(this.length);
    this.begins = new Uint32Array(this.length + 1);
    const total = answer.calls.reduce((sum, { of }) => sum + of.length, 0);
    this.rank = new Uint32Array(total);
    this.start = new Float64Array(total);
    this.end = new Float64Array(total);
  }

  /** Store all calls, rank by rank. */
  private *take(spans: CollectiveSpans): Generator<void> {
    const { key, keys } = this.answer;
    const calls = [...this.answer.calls].sort((a, b) => a.rank - b.rank);
    const seen = new Uint32Array(keys.length);
    for (let i = 0; i < this.length; i++) {
      this.n[i] = seen[key[i]]++;
    }
    yield;
    for (const { rank, of } of calls) {
      const sums = this.byRank.get(rank)!.of;
      for (let i = 0, at = 0; i < of.length; i++) {
        sums[i] = at += of[i];
        this.begins[at + 1] += 1;
      }
      yield;
    }
    for (let i = 0; i < this.length; i++) {
      this.begins[i + 1] += this.begins[i];
    }
    const free = this.begins.slice();
    for (const { rank } of calls) {
      yield;
      const { of } = this.byRank.get(rank)!;
      for (let from = 0; from < of.length; from += STEP) {
        this.takeSome(rank, of.subarray(from, from + STEP), from, spans.columns(rank, 'collective'), free);
        yield;
      }
    }
    for (let i = 0, latest = -Infinity; i < this.length; i++) {
      this.reach[i] = latest = Math.max(latest, this.ends[i]);
    }
  }

  /** Store a rank's calls from the `from`th on: `of` has their collectives, `free` the next free index of each. */
  private takeSome(rank: number, of: Uint32Array, from: number, { start, dur }: Columns, free: Uint32Array): void {
    const { firsts, lasts, ends } = this;
    for (let i = 0; i < of.length; i++) {
      const one = of[i];
      const at = free[one]++;
      const begin = start[from + i];
      const end = begin + dur[from + i];
      this.rank[at] = rank;
      this.start[at] = begin;
      this.end[at] = end;
      if (begin < firsts[one]) {
        firsts[one] = begin;
      }
      if (begin > lasts[one]) {
        lasts[one] = begin;
      }
      if (end > ends[one]) {
        ends[one] = end;
      }
    }
  }

  at(i: number): Collective {
    const { answer } = this;
    const [from, to] = [this.begins[i], this.begins[i + 1]];
    const ranks = [...this.rank.subarray(from, to)];
    const absent = this.absent(i);
    const [starts, ends] = [[...this.start.subarray(from, to)], [...this.end.subarray(from, to)]];
    return {
      ...answer.keys[answer.key[i]],
      n: this.n[i],
      ranks,
      starts,
      cuts: ranks.map((rank, at) => this.waitedUntil(i, rank, starts[at], ends[at])),
      ends,
      last: this.lasts[i],
      straggler: answer.straggler[i],
      spread: this.lasts[i] - this.firsts[i],
      cost: answer.cost[i],
      absent,
      givenUp: ranks.filter((rank, at) => this.hasGivenUp(i, rank, ends[at]))
    };
  }

  /** Return the range from the first arrival to the last end. */
  extentOf(i: number): Range {
    return { from: this.firsts[i], to: this.ends[i] };
  }

  /** Return the first index in a range and one past the last; some of the first ones may have ended before it. */
  in({ from, to }: Range): [number, number] {
    return [lowerBound(this.length, i => this.reach[i], from), lowerBound(this.length, i => this.firsts[i], to)];
  }

  /** Return the collective of a rank's i-th `collective` span; -1 if the span is newer than the match. */
  of(rank: number, i: number): number {
    return this.byRank.get(rank)?.of[i] ?? -1;
  }

  /** Whether a rank's matched spans have not moved; newer ones may follow them. */
  fits(rank: number, { order }: { order: number }): boolean {
    return this.byRank.get(rank)?.order === order;
  }

  /** Return when a rank's wait in the i-th collective ended and its transfer began. */
  waitedUntil(i: number, rank: number, start: number, end: number): number {
    if (this.hasGivenUp(i, rank, end)) {
      return end;
    }
    const last = this.lasts[i];
    const hasLeft = end + this.byRank.get(rank)!.doubt < last;
    return hasLeft ? start : Math.min(last, end);
  }

  /** Whether a failed rank was, as far as is known, still waiting in the i-th collective for absent ranks. */
  private hasGivenUp(i: number, rank: number, end: number): boolean {
    return this.failed.has(rank) && end > this.byRank.get(rank)!.newest && this.absent(i).length > 0;
  }

  private absent(i: number): number[] {
    const expected = this.answer.expected[this.answer.group[i] ?? 0];
    let at = this.begins[i];
    const end = this.begins[i + 1];
    // Both lists ascend.
    return expected.filter(rank => {
      while (at < end && this.rank[at] < rank) {
        at += 1;
      }
      return at >= end || this.rank[at] !== rank;
    });
  }
}
