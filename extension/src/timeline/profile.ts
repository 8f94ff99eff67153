/** Where the time of a run went: per rank, per kind of collective, and who made the others wait. */
import type { Run } from '../schema';
import { diagnosis } from './diagnosis';
import { Gathering, intersection, lengthOf, union, without, type Intervals } from './intervals';
import type { Collective, Matching } from './match';
import type { Columns, SpanSource } from './spans';
import type { Stays, Wall } from './stays';

/** Times in microseconds; compute + data + waiting + exposed + idle is the wall, for each rank. */
export interface Profile {
  wall: number;
  ranks: RankProfile[];
  /** The longest first. */
  kinds: KindProfile[];
  /** The dearest first. */
  stragglers: StragglerProfile[];
  /** One sentence; '' if there is nothing to say. */
  diagnosis: string;
}

export interface RankProfile {
  rank: number;
  compute: number;
  data: number;
  waiting: number;
  /** Communication that nothing overlaps. */
  exposed: number;
  idle: number;
  /** With what is overlapped. */
  communication: number;
}

export interface KindProfile {
  library: string;
  op: string;
  calls: number;
  /** The mean of what a rank contributes to a call. */
  bytes: number | null;
  time: number;
  wait: number;
  transfer: number;
  /** Bytes per second. */
  bandwidth: number | null;
}

export interface StragglerProfile {
  rank: number;
  /** How many collectives it was last in, of those with two or more ranks. */
  last: number;
  of: number;
  /** How long others waited for it. */
  cost: number;
}

/** Spans between two breaths. */
const PIECE = 10_000;
/** In graph mode nobody sees the main thread wait. */
const GRAPH = 'hvd.tensorflow';

/** Derive it in steps of a few milliseconds. */
export function* profiling(
  source: SpanSource,
  run: Run,
  stays: Stays,
  { collectives, of }: Matching
): Generator<void, Profile> {
  const ranks = run.ranks.map(({ rank }) => rank).sort((a, b) => a - b);
  const wall = stays.wall(run, yield* limits(source, ranks));
  const hasWaits = ranks.some(rank => source.columns(rank, 'wait').length > 0);
  const kinds = new Kinds(collectives, wall);
  const profiles: RankProfile[] = [];
  const waits: Intervals[] = [];
  for (const rank of ranks) {
    const stay = wall.isKnown ? stays.of(rank, run) : wall;
    const one = new OneRank(rank, wall, stay);
    yield* one.block(source.columns(rank, 'wait'));
    yield* one.load(source.columns(rank, 'data'));
    const { start, dur, name, length } = source.columns(rank, 'collective');
    const places = of.get(rank) ?? new Uint32Array(0);
    kinds.next();
    for (let i = 0; i < Math.min(length, places.length); i++) {
      const place = places[i];
      const { last, library } = collectives[place];
      const end = start[i] + dur[i];
      const until = start[i] + Math.max(0, Math.min(last, end) - start[i]);
      one.collect(start[i], until, end, !hasWaits || library === GRAPH);
      kinds.add(place, start[i], until, end, source.name(rank, name[i]).bytes);
      if (i % PIECE === PIECE - 1) {
        yield;
      }
    }
    profiles.push(one.profile());
    waits.push(one.waiting);
    yield;
  }
  const found = yield* stragglersOf(collectives, ranks, waits, wall);
  const shared = collectives.filter(one => one.ranks.length > 1);
  const profile = {
    wall: wall.end - wall.begin,
    ranks: profiles,
    kinds: kinds.profile(),
    stragglers: found
  };
  const ops = new Set(shared.map(({ op }) => op));
  return { ...profile, diagnosis: diagnosis(profile, shared.length, ops) };
}

/** From the earliest start to the latest end of all spans. */
function* limits(
  source: SpanSource,
  ranks: readonly number[]
): Generator<void, { begin: number; end: number } | null> {
  let begin = Infinity;
  let end = -Infinity;
  for (const rank of ranks) {
    for (const cat of source.cats(rank)) {
      const { start, dur, length } = source.columns(rank, cat);
      for (let i = 0; i < length; i++) {
        begin = Math.min(begin, start[i]);
        end = Math.max(end, start[i] + dur[i]);
      }
      yield;
    }
  }
  return begin > end ? null : { begin, end };
}

/** Each instant of the wall, as one rank spent it. */
class OneRank {
  waiting: Intervals = new Float64Array(0);
  private begin: number;
  private end: number;
  private waits: Gathering;
  private transfers: Gathering;
  private blocked: Gathering;
  private graph: Gathering;
  private loads: Gathering;

  constructor(
    private rank: number,
    private wall: Wall,
    stay: { begin: number | null; end: number | null }
  ) {
    // A rank that has not begun is never active, nor one that ended before it began.
    this.begin = stay.begin ?? wall.end;
    this.end = Math.max(this.begin, stay.end ?? wall.end);
    const gather = (): Gathering => new Gathering(this.begin, this.end);
    this.waits = gather();
    this.transfers = gather();
    this.blocked = gather();
    this.graph = gather();
    this.loads = gather();
  }

  *block(columns: Columns): Generator<void> {
    yield* gather(columns, this.blocked);
  }

  *load(columns: Columns): Generator<void> {
    yield* gather(columns, this.loads);
  }

  collect(start: number, until: number, end: number, isBlocked: boolean): void {
    this.waits.add(start, until);
    this.transfers.add(until, end);
    if (isBlocked) {
      this.graph.add(start, end);
    }
  }

  profile(): RankProfile {
    const blocked = union(this.blocked.union(), this.graph.union());
    const waits = this.waits.union();
    const exposed = without(blocked, waits);
    const data = lengthOf(without(this.loads.union(), blocked));
    this.waiting = intersection(blocked, waits);
    const waiting = lengthOf(this.waiting);
    const active = this.end - this.begin;
    return {
      rank: this.rank,
      compute: active - lengthOf(blocked) - data,
      data,
      waiting,
      exposed: lengthOf(exposed),
      idle: this.wall.end - this.wall.begin - active,
      communication: lengthOf(union(this.transfers.union(), exposed))
    };
  }
}

function* gather({ start, dur, length }: Columns, into: Gathering): Generator<void> {
  for (let i = 0; i < length; i++) {
    into.add(start[i], start[i] + dur[i]);
    if (i % PIECE === PIECE - 1) {
      yield;
    }
  }
}

/** What one kind of collective took, summed over ranks. */
interface Sums {
  library: string;
  op: string;
  calls: number;
  ranks: number;
  time: number;
  wait: number;
  transfer: number;
  bytes: number;
  withBytes: number;
}

/** The flat profile: one row per library and operation. */
class Kinds {
  private sums: Sums[] = [];
  /** The kind of each collective. */
  private kind: Uint32Array;
  /** Of the present rank, by kind: its spans, its waits, its transfers. */
  private present = new Map<number, [Gathering, Gathering, Gathering]>();

  constructor(
    collectives: readonly Collective[],
    private wall: Wall
  ) {
    const known = new Map<string, number>();
    this.kind = Uint32Array.from(collectives, ({ library, op }) => {
      const key = `${library}\0${op}`;
      let kind = known.get(key);
      if (kind === undefined) {
        kind = this.sums.length;
        known.set(key, kind);
        this.sums.push({ library, op, calls: 0, ranks: 0, time: 0, wait: 0, transfer: 0, bytes: 0, withBytes: 0 });
      }
      this.sums[kind].calls += 1;
      return kind;
    });
  }

  /** What comes from now on is another rank's. */
  next(): void {
    this.present.forEach((gathered, kind) => {
      const [time, wait, transfer] = gathered.map(one => lengthOf(one.union()));
      const sums = this.sums[kind];
      sums.ranks += 1;
      sums.time += time;
      sums.wait += wait;
      sums.transfer += transfer;
    });
    this.present.clear();
  }

  add(place: number, start: number, until: number, end: number, bytes: number | undefined): void {
    const kind = this.kind[place];
    let there = this.present.get(kind);
    if (!there) {
      const gather = (): Gathering => new Gathering(this.wall.begin, this.wall.end);
      there = [gather(), gather(), gather()];
      this.present.set(kind, there);
    }
    there[0].add(start, end);
    there[1].add(start, until);
    there[2].add(until, end);
    if (Number.isSafeInteger(bytes) && bytes! >= 0) {
      this.sums[kind].bytes += bytes!;
      this.sums[kind].withBytes += 1;
    }
  }

  profile(): KindProfile[] {
    this.next();
    return this.sums
      .map(sums => {
        const mean = (sum: number): number => Math.floor(sum / sums.ranks);
        const bytes = sums.withBytes ? sums.bytes / sums.withBytes : null;
        const transfer = mean(sums.transfer);
        return {
          library: sums.library, op: sums.op, calls: sums.calls, bytes,
          time: mean(sums.time), wait: mean(sums.wait), transfer,
          bandwidth: bytes !== null && transfer > 0 ? (sums.calls * bytes) / (transfer / 1e6) : null
        };
      })
      .sort((a, b) => b.time - a.time || order(a.library, b.library) || order(a.op, b.op));
  }
}

/** Who was last, and how long somebody else waited meanwhile: late costs nothing while nobody waits. */
function* stragglersOf(
  collectives: readonly Collective[],
  ranks: readonly number[],
  waits: readonly Intervals[],
  wall: Wall
): Generator<void, StragglerProfile[]> {
  const late = new Map(ranks.map(rank => [rank, new Gathering(wall.begin, wall.end)]));
  const last = new Map<number, number>();
  let of = 0;
  for (const one of collectives) {
    if (one.ranks.length > 1) {
      of += 1;
      late.get(one.straggler)?.add(one.last - one.cost, one.last);
      last.set(one.straggler, (last.get(one.straggler) ?? 0) + (one.spread > 0 ? 1 : 0));
    }
  }
  yield;
  // The waits of all ranks after this one, and then of all before it.
  const after: Intervals[] = [new Float64Array(0)];
  for (let i = ranks.length - 1; i > 0; i--) {
    after.unshift(union(waits[i], after[0]));
    yield;
  }
  const found: StragglerProfile[] = [];
  let before: Intervals = new Float64Array(0);
  for (let i = 0; i < ranks.length; i++) {
    const others = union(before, after[i]);
    const cost = lengthOf(intersection(late.get(ranks[i])!.union(), others));
    if (cost > 0) {
      found.push({ rank: ranks[i], last: last.get(ranks[i]) ?? 0, of, cost });
    }
    before = union(before, waits[i]);
    yield;
  }
  return found.sort((a, b) => b.cost - a.cost || a.rank - b.rank);
}

function order(a: string, b: string): number {
  return a === b ? 0 : a < b ? -1 : 1;
}
