/** Find spans: by text in their names, or the next and previous one of the same name. */
import { lowerBound } from '../lowerbound';
import type { SpanName } from '../schema';
import type { Spans, SpanSource } from './spans';

/** A span, identified by its index `i` in the columns of its rank and category. */
export interface Spot {
  rank: number;
  cat: string;
  i: number;
}

/** Identifies a span even if its index changes. */
export interface Mark {
  rank: number;
  cat: string;
  /** On the rank's own clock, as the clock's offset may be measured again. */
  start: number;
  dur: number;
  /** Its index in the rank's table of names. */
  name: number;
}

/** Spans counted per step. */
const COUNTED = 4096;

/** A case-insensitive search for text in the names and tensors of spans. */
export class Search {
  readonly text: string;
  private marks = new Map<string, boolean>();

  constructor(
    private source: SpanSource,
    text: string,
    /** The ranks to search in; null for all. */
    private shown: ReadonlySet<number> | null = null
  ) {
    this.text = text.trim().toLowerCase();
  }

  private get ranks(): number[] {
    return this.source.ranks.filter(rank => this.shown?.has(rank) ?? true);
  }

  isMarked(rank: number, number: number): boolean {
    const key = `${rank}:${number}`;
    let mark = this.marks.get(key);
    if (mark === undefined) {
      const { name, tensor } = this.source.name(rank, number);
      mark = name.toLowerCase().includes(this.text) || String(tensor ?? '').toLowerCase().includes(this.text);
      this.marks.set(key, mark);
    }
    return mark;
  }

  /** Return a cached version of `isMarked` for one rank, fast enough for many spans. */
  marker(rank: number): (number: number) => boolean {
    const known: boolean[] = [];
    return number => (number < 1 << 22 ? (known[number] ??= this.isMarked(rank, number)) : this.isMarked(rank, number));
  }

  /** Count the matching spans, in steps of `COUNTED` spans. */
  *counting(): Generator<void, number> {
    let count = 0;
    for (const rank of this.ranks) {
      const isMarked = this.marker(rank);
      for (const cat of this.source.cats(rank)) {
        const { name, length } = this.source.columns(rank, cat);
        for (let i = 0; i < length; i++) {
          count += isMarked(name[i]) ? 1 : 0;
          if (i % COUNTED === 0) {
            yield;
          }
        }
      }
    }
    return count;
  }

  /** Return the next match (for step -1, the previous one) from the span `from`, or from time `t`; wrap at the end. */
  next(from: Spot | null, t: number, step: 1 | -1): Spot | null {
    return this.seek(from, from ? this.startOf(from) : t, step) ?? this.seek(null, -step * Infinity, step);
  }

  private startOf({ rank, cat, i }: Spot): number {
    return this.source.columns(rank, cat).start[i];
  }

  private seek(from: Spot | null, t: number, step: 1 | -1): Spot | null {
    let found: Spot | null = null;
    let nearest = step * Infinity;
    // Spans with the same start are ordered by rank and lane.
    let isPast = from === null;
    for (const rank of this.ranks) {
      const isMarked = this.marker(rank);
      for (const cat of this.source.cats(rank)) {
        const { start, name, length } = this.source.columns(rank, cat);
        const isHere = from !== null && from.rank === rank && from.cat === cat;
        const mayEqual = step > 0 ? isPast : !isPast && !isHere;
        let i: number;
        if (isHere) {
          i = from.i + step;
          isPast = true;
        } else if (step > 0) {
          i = lowerBound(length, at => start[at], mayEqual ? t : after(t));
        } else {
          i = lowerBound(length, at => start[at], mayEqual && from ? after(t) : t) - 1;
        }
        while (i >= 0 && i < length && !isMarked(name[i])) {
          i += step;
        }
        const isNearer = i >= 0 && i < length && (step > 0 ? start[i] < nearest : start[i] >= nearest);
        if (isNearer) {
          nearest = start[i];
          found = { rank, cat, i };
        }
      }
    }
    return found;
  }
}

export function markOf(spans: Spans, { rank, cat, i }: Spot): Mark {
  const { start, dur, name } = spans.columns(rank, cat);
  return { rank, cat, start: start[i] + spans.offset(rank), dur: dur[i], name: name[i] };
}

/** Return a span's current index; null if the span is not here, or not yet. */
export function spotOf(spans: Spans, mark: Mark): Spot | null {
  const { rank, cat } = mark;
  const { start, dur, name, length } = spans.columns(rank, cat);
  const begin = mark.start - spans.offset(rank);
  for (let i = lowerBound(length, at => start[at], begin); i < length && start[i] === begin; i++) {
    if (dur[i] === mark.dur && name[i] === mark.name) {
      return { rank, cat, i };
    }
  }
  return null;
}

/** Return the next larger whole microsecond. */
function after(t: number): number {
  return Number.isFinite(t) ? Math.floor(t) + 1 : t;
}

/** Return the next or previous span with the same name and tensor in the same lane; null at the end. */
export function sameName(source: SpanSource, { rank, cat, i }: Spot, step: 1 | -1): Spot | null {
  const { name, length } = source.columns(rank, cat);
  const sought = source.name(rank, name[i]);
  const isSame = ({ name, tensor }: SpanName): boolean => name === sought.name && tensor === sought.tensor;
  for (let at = i + step; at >= 0 && at < length; at += step) {
    if (name[at] === name[i] || isSame(source.name(rank, name[at]))) {
      return { rank, cat, i: at };
    }
  }
  return null;
}

/** Return the next or previous span in the same lane; null at the end. */
export function neighbour(source: SpanSource, { rank, cat, i }: Spot, step: 1 | -1): Spot | null {
  const at = i + step;
  return at >= 0 && at < source.columns(rank, cat).length ? { rank, cat, i: at } : null;
}

/** Return the span of a lane that starts nearest to time `t`; null if the lane is empty. */
export function nearest(source: SpanSource, rank: number, cat: string, t: number): Spot | null {
  const { start, length } = source.columns(rank, cat);
  const next = lowerBound(length, at => start[at], t);
  const isBefore = next > 0 && (next === length || t - start[next - 1] < start[next] - t);
  return length ? { rank, cat, i: isBefore ? next - 1 : next } : null;
}
