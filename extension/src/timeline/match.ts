/** Collectives: the spans of all ranks that belong to one operation, and who came to it last. */
import type { Run, SpanName } from '../schema';
import type { Columns, SpanSource } from './spans';

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
  /** When each of them arrived, and when it was through. */
  starts: number[];
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
  /** Those of `ranks` that waited for the absent ones until their cell was broken off. */
  givenUp: number[];
}

export interface Matching {
  /** In order of their first arrivals. */
  collectives: Collective[];
  /** For each rank: which collective the i-th of its `collective` spans belongs to. */
  of: Map<number, Uint32Array>;
}

/** Spans between two breaths. */
const PIECE = 10_000;
const NOBODY: number[] = [];

/** Match them in steps of a few milliseconds. What comes in meanwhile is for the next time. */
export function* matching(source: SpanSource, run: Run): Generator<void, Matching> {
  const parts = source.ranks.map(rank => {
    // As they are now: they grow while this goes on.
    const { start, dur, name, length } = source.columns(rank, 'collective');
    return { rank, columns: { start, dur, name, length } };
  });
  const everybody = run.ranks.length ? run.ranks.map(({ rank }) => rank) : source.ranks;
  const failed = run.ranks.filter(({ state }) => state && state !== 'running' && state !== 'ok');
  const found = new Occurrences(everybody, new Set(failed.map(({ rank }) => rank)));
  const of: Uint32Array[] = [];
  for (const { rank, columns } of parts) {
    of.push(yield* found.number(columns, number => source.name(rank, number)));
  }
  yield* found.sort(of);
  const collectives = yield* found.make(parts, of);
  return { collectives, of: new Map(parts.map(({ rank }, part) => [rank, of[part]])) };
}

interface Part {
  rank: number;
  columns: Columns;
}

/** What tells one operation from another. */
interface Key {
  op: string;
  tensor: string;
  library: string;
  group: string;
  /** Its occurrences, by number. */
  ids: number[];
}

/** What a name says of its spans. */
interface Said {
  key: Key;
  ranks: number[] | null;
}

/** The n-th span of a key on each rank is occurrence n of that key. */
class Occurrences {
  private byText = new Map<string, Key>();
  /** Of each occurrence: its key, its n, who must come, when the first came, and how many did. */
  private key: Key[] = [];
  private expected: Array<number[] | null> = [];
  private n: number[] = [];
  private first: number[] = [];
  private count: number[] = [];
  private order: number[] = [];
  private everybody: number[];

  constructor(
    ranks: readonly number[],
    private failed: ReadonlySet<number>
  ) {
    this.everybody = [...ranks].sort((a, b) => a - b);
  }

  /** The occurrence that each span of a rank belongs to. */
  *number(
    { start, name, length }: Columns,
    nameOf: (number: number) => SpanName
  ): Generator<void, Uint32Array> {
    const ids = new Uint32Array(length);
    const known = new Map<number, Said>();
    const seen = new Map<Key, number>();
    for (let i = 0; i < length; i++) {
      let said = known.get(name[i]);
      if (!said) {
        said = this.said(nameOf(name[i]));
        known.set(name[i], said);
      }
      const { key, ranks } = said;
      const n = seen.get(key) ?? 0;
      seen.set(key, n + 1);
      const id = n < key.ids.length ? key.ids[n] : this.add(key, n, start[i]);
      ids[i] = id;
      this.count[id] += 1;
      this.expected[id] ??= ranks;
      if (start[i] < this.first[id]) {
        this.first[id] = start[i];
      }
      if (i % PIECE === PIECE - 1) {
        yield;
      }
    }
    return ids;
  }

  /** Put the occurrences in order, and name places in that order instead. */
  *sort(columns: readonly Uint32Array[]): Generator<void> {
    const { first, key, n } = this;
    this.order = first
      .map((_, id) => id)
      .sort((a, b) => first[a] - first[b] || compare(key[a], key[b]) || n[a] - n[b]);
    yield;
    const places = new Uint32Array(this.order.length);
    this.order.forEach((id, place) => (places[id] = place));
    for (const ids of columns) {
      for (let i = 0; i < ids.length; i++) {
        ids[i] = places[ids[i]];
      }
      yield;
    }
  }

  /** The collectives, in order. Their spans are brought together first, as memory likes it. */
  *make(parts: readonly Part[], of: readonly Uint32Array[]): Generator<void, Collective[]> {
    const counts = this.order.map(id => this.count[id]);
    const ends = new Uint32Array(counts.length);
    let total = 0;
    counts.forEach((count, place) => {
      ends[place] = total;
      total += count;
    });
    const partAt = new Uint32Array(total);
    const spanAt = new Uint32Array(total);
    for (let part = 0; part < of.length; part++) {
      for (let i = 0; i < of[part].length; i++) {
        const at = ends[of[part][i]]++;
        partAt[at] = part;
        spanAt[at] = i;
      }
      yield;
    }
    const made: Collective[] = [];
    const scratch = new Float64Array(parts.length);
    let ranks: number[] = [];
    for (let place = 0; place < counts.length; place++) {
      const count = counts[place];
      const from = ends[place] - count;
      const one = this.begin(this.order[place], count);
      for (let i = 0; i < count; i++) {
        const { start, dur } = parts[partAt[from + i]].columns;
        const span = spanAt[from + i];
        one.starts[i] = start[span];
        one.ends[i] = start[span] + dur[span];
      }
      // Most have the same ranks: one list serves them all.
      if (ranks.length !== count || ranks.some((rank, i) => rank !== parts[partAt[from + i]].rank)) {
        ranks = Array.from({ length: count }, (_, i) => parts[partAt[from + i]].rank);
      }
      one.ranks = ranks;
      judge(one, scratch, this.failed);
      made.push(one);
      if (place % (PIECE / 50) === 0) {
        yield;
      }
    }
    return made;
  }

  private begin(id: number, count: number): Collective {
    const { op, tensor, library, group } = this.key[id];
    return {
      op, tensor, library, group, n: this.n[id],
      ranks: NOBODY, starts: new Array<number>(count), ends: new Array<number>(count),
      last: 0, straggler: 0, spread: 0, cost: 0, absent: this.expected[id] ?? this.everybody, givenUp: NOBODY
    };
  }

  private add(key: Key, n: number, start: number): number {
    const id = this.key.push(key) - 1;
    key.ids.push(id);
    this.expected.push(null);
    this.n.push(n);
    this.first.push(start);
    this.count.push(0);
    return id;
  }

  private said(name: SpanName): Said {
    const op = text(name.op, name.name);
    const tensor = text(name.tensor);
    const library = text(name.library);
    const group = text(name.group);
    const known = `${library}\0${group}\0${op}\0${tensor}`;
    let key = this.byText.get(known);
    if (!key) {
      key = { op, tensor, library, group, ids: [] };
      this.byText.set(known, key);
    }
    const isListed = Array.isArray(name.ranks) && name.ranks.every(Number.isSafeInteger);
    return { key, ranks: isListed ? [...name.ranks!].sort((a, b) => a - b) : null };
  }
}

/** An argument of a name; other programs' may be anything. */
function text(value: unknown, otherwise = ''): string {
  return typeof value === 'string' ? value : otherwise;
}

function compare(a: Key, b: Key): number {
  for (const field of ['library', 'group', 'op', 'tensor'] as const) {
    if (a[field] !== b[field]) {
      return a[field] < b[field] ? -1 : 1;
    }
  }
  return 0;
}

/** When the wait of a rank in a collective was over, and the transfer began. */
export function waitedUntil(one: Collective, rank: number, start: number, end: number): number {
  if (one.givenUp.length && one.givenUp.includes(rank)) {
    return end;
  }
  return start + Math.max(0, Math.min(one.last, end) - start);
}

/** Who came last, and by how much. */
function judge(one: Collective, scratch: Float64Array, failed: ReadonlySet<number>): void {
  const { ranks, starts } = one;
  let at = 0;
  let first = starts[0];
  for (let i = 1; i < starts.length; i++) {
    if (starts[i] > starts[at]) {
      at = i;
    }
    first = Math.min(first, starts[i]);
  }
  one.last = starts[at];
  one.straggler = ranks[at];
  one.spread = one.last - first;
  one.absent = one.absent.every((rank, i) => rank === ranks[i])
    ? NOBODY
    : one.absent.filter(rank => !ranks.includes(rank));
  if (one.absent.length) {
    one.givenUp = ranks.filter(rank => failed.has(rank));
  }
  if (starts.length > 1) {
    let others = 0;
    for (let i = 0; i < starts.length; i++) {
      if (i !== at) {
        scratch[others++] = starts[i];
      }
    }
    one.cost = one.last - median(scratch.subarray(0, others));
  }
}

/** The middle value; of an even count the mean of the middle two, rounded down. Reorders them. */
export function median(values: Float64Array): number {
  const half = values.length >> 1;
  const upper = select(values, half);
  if (values.length % 2) {
    return upper;
  }
  let lower = values[0];
  for (let i = 1; i < half; i++) {
    lower = Math.max(lower, values[i]);
  }
  return Math.floor((lower + upper) / 2);
}

/** The k-th smallest value; smaller ones are moved before it (Hoare). */
function select(values: Float64Array, k: number): number {
  let from = 0;
  let to = values.length - 1;
  while (from < to) {
    const pivot = values[(from + to) >> 1];
    let i = from;
    let j = to;
    while (i <= j) {
      while (values[i] < pivot) {
        i++;
      }
      while (values[j] > pivot) {
        j--;
      }
      if (i <= j) {
        const value = values[i];
        values[i++] = values[j];
        values[j--] = value;
      }
    }
    if (k <= j) {
      to = j;
    } else if (k >= i) {
      from = i;
    } else {
      break;
    }
  }
  return values[k];
}
