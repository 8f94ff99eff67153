/** Made-up spans, for tests. */
import type { Run, SpanName } from '../src/schema';
import { matching, type Collective } from '../src/timeline/match';
import type { Columns, SpanSource } from '../src/timeline/spans';

export interface Row {
  name: SpanName;
  start: number;
  dur: number;
}

const NONE: Columns = {
  start: new Float64Array(0), dur: new Float64Array(0), name: new Uint32Array(0), length: 0
};

/** Spans as the store keeps them: in columns, in order of their starts. */
export class MadeUp implements SpanSource {
  version = 1;
  dropped = new Map<string, number>();
  private rows = new Map<number, Map<string, Row[]>>();
  private names = new Map<number, SpanName[]>();
  private made = new Map<string, Columns>();

  get ranks(): number[] {
    return [...this.rows.keys()].sort((a, b) => a - b);
  }

  add(rank: number, cat: string, ...rows: Row[]): this {
    const cats = this.rows.get(rank) ?? new Map<string, Row[]>();
    this.rows.set(rank, cats);
    cats.set(cat, [...(cats.get(cat) ?? []), ...rows]);
    this.made.clear();
    this.version += 1;
    return this;
  }

  cats(rank: number): string[] {
    return [...(this.rows.get(rank)?.keys() ?? [])];
  }

  columns(rank: number, cat: string): Columns {
    const rows = this.rows.get(rank)?.get(cat);
    if (!rows) {
      return NONE;
    }
    const key = `${rank} ${cat}`;
    const made = this.made.get(key) ?? this.make(rank, rows);
    this.made.set(key, made);
    return made;
  }

  name(rank: number, number: number): SpanName {
    return this.names.get(rank)?.[number] ?? { name: '?' };
  }

  private make(rank: number, rows: readonly Row[]): Columns {
    const names = this.names.get(rank) ?? [];
    this.names.set(rank, names);
    const numbers = new Map(names.map((name, number) => [JSON.stringify(name), number]));
    const sorted = [...rows].sort((a, b) => a.start - b.start);
    return {
      start: Float64Array.from(sorted, row => row.start),
      dur: Float64Array.from(sorted, row => row.dur),
      name: Uint32Array.from(sorted, ({ name }) => {
        const key = JSON.stringify(name);
        if (!numbers.has(key)) {
          numbers.set(key, names.push(name) - 1);
        }
        return numbers.get(key)!;
      }),
      length: sorted.length
    };
  }
}

/** The name of a collective. */
export function called(op: string, tensor: string, more: Partial<SpanName> = {}): SpanName {
  return { name: `${op} ${tensor}`, op, tensor, library: 'hvd.torch', ...more };
}

export function runOf(size: number): Run {
  const ranks = Array.from({ length: size }, (_, rank) => ({ rank, host: 'h', pid: 1, device: 'cpu' }));
  return { version: 1, id: 'made-up', state: 'done', start: 1, cluster: 'local', size, ranks };
}

/** Numbers from a seed, from 0 up to 1: the same in every run of a test. */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The collectives, at once. */
export function match(source: SpanSource, run: Run): Collective[] {
  return toEnd(matching(source, run)).collectives;
}

/** What steps come to. */
export function toEnd<T>(steps: Generator<void, T>): T {
  for (;;) {
    const step = steps.next();
    if (step.done) {
      return step.value;
    }
  }
}
