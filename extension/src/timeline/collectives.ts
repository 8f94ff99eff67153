/** Collectives as the server matched them: which spans belong to one operation, and who came to it last. */
import { lowerBound } from '../lowerbound';
import type { Columns } from './columns';
import type { Range } from './range';

/** Times in microseconds since the run's start. */
export interface Collective {
  op: string;
  tensor: string;
  library: string;
  group: string;
  /** Counts the operations of the same kind on the same tensor from 0. */
  n: number;
  /** Those that took part, ascending. */
  ranks: number[];
  /** When each of them arrived, when its wait was over and the transfer began, and when it was through. */
  starts: number[];
  cuts: number[];
  ends: number[];
  /** The last arrival, and whose it was. */
  last: number;
  straggler: number;
  /** From the first arrival to the last one. */
  spread: number;
  /** How much later the straggler came than the others usually did. */
  cost: number;
  /** Ranks that should have taken part. */
  absent: number[];
  /** Those of `ranks` that waited for the absent ones until they failed. */
  givenUp: number[];
}

/** What the route `runs/<id>/collectives` says: docs/server.md. */
export interface CollectivesAnswer {
  keys: Array<Pick<Collective, 'op' | 'tensor' | 'library' | 'group'>>;
  /** Of each collective: its key, who came last, and what that cost. */
  key: number[];
  straggler: number[];
  cost: number[];
  /** Ranks that should take part, and which of these lists is whose; empty if the first is everyone's. */
  expected: number[][];
  group: number[];
  /** Ranks on which the cell did not end by itself. */
  failed: number[];
  /** By `doubt` µs, a rank's times may be off those of other hosts. */
  calls: Array<{ rank: number; doubt: number; check: number; of: number[] }>;
}

/** Where the spans are that the server matched. */
export interface CollectiveSpans {
  columns(rank: number, cat: string): Columns & { readonly order: number };
}

/** Calls that are taken over at a time. */
const STEP = 20_000;

/** The collectives of a run in order of their first arrivals. */
export class Collectives {
  readonly length: number;
  /** First arrival, last arrival and last end of each, and the latest end of it and all before it. */
  private firsts: Float64Array;
  private lasts: Float64Array;
  private ends: Float64Array;
  private reach: Float64Array;
  private n: Uint32Array;
  /** The calls of each collective, one after the other, by rank. */
  private begins: Uint32Array;
  private rank: Uint32Array;
  private start: Float64Array;
  private end: Float64Array;
  /** Of each rank: which collectives its calls are, when the newest began, and how far its times may be off. */
  private byRank = new Map<number, { of: Uint32Array; order: number; newest: number; doubt: number }>();
  private failed: ReadonlySet<number>;

  /**
   * Match spans as the server did, in steps, as there may be millions: null if they are not those that it matched. It
   * knew more, or others, or they change meanwhile.
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

  /** Take over all calls, rank by rank. */
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

  /** Note calls of a rank, from its `from`th on, which belong to collectives `of`. */
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

  /** From the first arrival to the last end. */
  extentOf(i: number): Range {
    return { from: this.firsts[i], to: this.ends[i] };
  }

  /** Those in a range; some of the first may have ended before it. */
  in({ from, to }: Range): [number, number] {
    return [lowerBound(this.length, i => this.reach[i], from), lowerBound(this.length, i => this.firsts[i], to)];
  }

  /** The one that the i-th `collective` span of a rank belongs to; -1 if it came after they were matched. */
  of(rank: number, i: number): number {
    return this.byRank.get(rank)?.of[i] ?? -1;
  }

  /** Whether a rank's spans that were matched are where they were; there may be more by now. */
  fits(rank: number, { order }: { order: number }): boolean {
    return this.byRank.get(rank)?.order === order;
  }

  /** When the wait of a rank in the i-th was over, and the transfer began. */
  waitedUntil(i: number, rank: number, start: number, end: number): number {
    if (this.hasGivenUp(i, rank, end)) {
      return end;
    }
    const last = this.lasts[i];
    const hasLeft = end + this.byRank.get(rank)!.doubt < last;
    return hasLeft ? start : Math.min(last, end);
  }

  /** Whether a failed rank did not get out of the i-th, which others did not come to, as far as is known. */
  private hasGivenUp(i: number, rank: number, end: number): boolean {
    return this.failed.has(rank) && end > this.byRank.get(rank)!.newest && this.absent(i).length > 0;
  }

  private absent(i: number): number[] {
    const expected = this.answer.expected[this.answer.group[i] ?? 0];
    let at = this.begins[i];
    const end = this.begins[i + 1];
    // Both ascend.
    return expected.filter(rank => {
      while (at < end && this.rank[at] < rank) {
        at += 1;
      }
      return at >= end || this.rank[at] !== rank;
    });
  }
}
