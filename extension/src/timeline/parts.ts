/** Collectives as the picture needs them: each span in its wait and its transfer, and who came last. */
import { lowerBound, type Columns } from './columns';
import { waitedUntil, type Collective, type Matching } from './match';
import type { Range } from './range';
import { Row, stack } from './row';

/** The names that parts of a collective's span have. */
export const WAIT = 0;
export const TRANSFER = 1;

/** The rows of a rank's collectives, each span cut at the last arrival. */
export function partRows(rank: number, columns: Columns, of: Uint32Array, collectives: readonly Collective[]): Row[] {
  return stack(columns).map(row => {
    const room = 2 * row.length;
    const parts = { start: new Float64Array(room), dur: new Float64Array(room), name: new Uint32Array(room), length: 0 };
    const owners = new Uint32Array(room);
    const put = (from: number, to: number, name: number, owner: number): void => {
      const at = parts.length++;
      parts.start[at] = from;
      parts.dur[at] = to - from;
      parts.name[at] = name;
      owners[at] = owner;
    };
    for (let i = 0; i < row.length; i++) {
      const [place, start, end] = [row.place(i), row.start(i), row.end(i)];
      const collective = collectives[of[place]];
      const cut = collective ? waitedUntil(collective, rank, start, end) : start;
      if (cut > start) {
        put(start, cut, WAIT, place);
      }
      if (end > cut || cut === start) {
        put(cut, end, TRANSFER, place);
      }
    }
    return new Row(parts, null, owners);
  });
}

/** The collectives of a run, to be found by time. */
export class Bands {
  private firsts: Float64Array;
  /** The latest end of each and all before it. */
  private reach: Float64Array;

  /** `orders` tells in which order each rank's spans were when they were matched. */
  constructor(
    readonly matching: Matching,
    readonly orders: ReadonlyMap<number, number> = new Map()
  ) {
    const { collectives } = matching;
    this.firsts = Float64Array.from(collectives, ({ starts }) => least(starts));
    this.reach = Float64Array.from(collectives, ({ ends }) => most(ends));
    for (let i = 1; i < this.reach.length; i++) {
      this.reach[i] = Math.max(this.reach[i], this.reach[i - 1]);
    }
  }

  /** Numbers of the collectives in a range; some of them may have ended before it. */
  in({ from, to }: Range): [number, number] {
    const { length } = this.firsts;
    return [lowerBound(this.reach, length, from), lowerBound(this.firsts, length, to)];
  }

  /** The collective that the i-th span of a rank belongs to. */
  of(rank: number, place: number): Collective | null {
    const number = this.matching.of.get(rank)?.[place];
    return number === undefined ? null : (this.matching.collectives[number] ?? null);
  }
}

export function least(numbers: readonly number[]): number {
  return numbers.reduce((a, b) => Math.min(a, b), Infinity);
}

export function most(numbers: readonly number[]): number {
  return numbers.reduce((a, b) => Math.max(a, b), -Infinity);
}
