/** Where the time of a run went: per rank, per kind of collective, and who made the others wait. */
import type { Run } from '../schema';
import { costOf, diagnosis, namedOf } from './diagnosis';
import { Gathering, Measure, intersection, lengthOf, union, without, type Intervals } from './intervals';
import { waitedUntil, type Collective, type Matching } from './match';
import { ownSpans } from './own';
import type { KindProfile, Profile, RankProfile, StragglerProfile } from './profilerows';
import type { Columns, SpanSource } from './spans';
import type { Stays, Wall } from './stays';

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
  const free = new Map<number, Intervals>();
  for (const rank of ranks) {
    const stay = wall.isKnown ? stays.of(rank, run) : wall;
    const one = new OneRank(rank, wall, stay);
    yield* one.block(source.columns(rank, 'wait'));
    yield* one.load(source.columns(rank, 'data'));
    const { start, dur, name } = source.columns(rank, 'collective');
    const places = of.get(rank) ?? new Uint32Array(0);
    const untils = new Float64Array(places.length);
    for (let i = 0; i < places.length; i++) {
      const collective = collectives[places[i]];
      const end = start[i] + dur[i];
      untils[i] = waitedUntil(collective, rank, start[i], end);
      one.collect(start[i], untils[i], end, !hasWaits || collective.library === GRAPH);
      if (i % PIECE === PIECE - 1) {
        yield;
      }
    }
    yield* kinds.take(start, untils, dur, places, i => source.name(rank, name[i]).bytes);
    profiles.push(one.profile());
    waits.push(one.waiting);
    free.set(rank, one.free);
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
  const named = namedOf(profile);
  const own = yield* ownSpans(source, free, named.map(({ rank }) => rank), costOf(profile, named));
  const hasGivenUp = collectives.some(({ givenUp }) => givenUp.length > 0);
  return { ...profile, diagnosis: diagnosis(profile, { count: shared.length, ops, hasGivenUp }, own) };
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
  /** When nothing held it up. */
  free: Intervals = new Float64Array(0);
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
    this.free = active > 0 ? without(Float64Array.of(this.begin, this.end), blocked) : this.free;
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
  private times: Gathering;
  private waits: Gathering;
  private transfers: Gathering;

  constructor(collectives: readonly Collective[], wall: Wall) {
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
    this.times = new Gathering(wall.begin, wall.end);
    this.waits = new Gathering(wall.begin, wall.end);
    this.transfers = new Gathering(wall.begin, wall.end);
  }

  /** Add a rank's collectives: kind after kind, so that one set of intervals serves them all. */
  *take(
    start: Float64Array,
    untils: Float64Array,
    dur: Float64Array,
    places: Uint32Array,
    bytesOf: (i: number) => number | undefined
  ): Generator<void> {
    const { kind, times, waits, transfers } = this;
    const ends = new Uint32Array(this.sums.length + 1);
    places.forEach(place => (ends[kind[place] + 1] += 1));
    for (let i = 1; i < ends.length; i++) {
      ends[i] += ends[i - 1];
    }
    const spans = new Uint32Array(places.length);
    for (let i = 0; i < places.length; i++) {
      spans[ends[kind[places[i]]]++] = i;
    }
    yield;
    for (let at = 0, which = 0; at < spans.length; which++) {
      const sums = this.sums[which];
      sums.ranks += at < ends[which] ? 1 : 0;
      for (; at < ends[which]; at++) {
        const i = spans[at];
        times.add(start[i], start[i] + dur[i]);
        waits.add(start[i], untils[i]);
        transfers.add(untils[i], start[i] + dur[i]);
        const bytes = bytesOf(i);
        if (Number.isSafeInteger(bytes) && bytes! >= 0) {
          sums.bytes += bytes!;
          sums.withBytes += 1;
        }
        if (at % PIECE === PIECE - 1) {
          yield;
        }
      }
      sums.time += lengthOf(times.take());
      sums.wait += lengthOf(waits.take());
      sums.transfer += lengthOf(transfers.take());
    }
  }

  profile(): KindProfile[] {
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
  // Where somebody waits, and where two do or more: alone, it is perhaps the late one itself.
  let some: Intervals = new Float64Array(0);
  let several = some;
  for (const wait of waits) {
    several = union(several, intersection(some, wait));
    some = union(some, wait);
    yield;
  }
  const anybody = new Measure(some);
  const alone = without(some, several);
  const found: StragglerProfile[] = [];
  for (let i = 0; i < ranks.length; i++) {
    const lates = late.get(ranks[i])!.union();
    const own = lates.length ? intersection(lates, intersection(alone, waits[i])) : lates;
    const cost = anybody.of(lates) - lengthOf(own);
    if (cost > 0) {
      found.push({ rank: ranks[i], last: last.get(ranks[i]) ?? 0, of, cost });
    }
    yield;
  }
  return found.sort((a, b) => b.cost - a.cost || a.rank - b.rank);
}

function order(a: string, b: string): number {
  return a === b ? 0 : a < b ? -1 : 1;
}
