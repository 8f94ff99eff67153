/**
 * A growing column of numbers in typed arrays: a million lines must not be a million objects.
 *
 * Blocks are small, so that a run of ten lines costs little, and can be let go from the middle.
 */

type Numbers = Uint8Array | Uint16Array | Uint32Array | Float64Array;

const BITS = 11;
export const BLOCK = 1 << BITS;
const MASK = BLOCK - 1;

export class Column<T extends Numbers = Uint32Array> {
  private blocks: Array<T | undefined> = [];

  constructor(private make: (length: number) => T) {}

  get(index: number): number {
    const block = this.blocks[index >>> BITS];
    return block === undefined ? 0 : block[index & MASK];
  }

  set(index: number, value: number): void {
    let block = this.blocks[index >>> BITS];
    if (block === undefined) {
      block = this.make(BLOCK);
      this.blocks[index >>> BITS] = block;
    }
    block[index & MASK] = value;
  }

  /** Let go of the numbers from `from` up to `to`; both are multiples of BLOCK. They read as 0. */
  drop(from: number, to: number): void {
    for (let block = from >>> BITS; block < to >>> BITS; block++) {
      this.blocks[block] = undefined;
    }
  }
}

/** A dense list of numbers that grows at the end and can be cut short. */
export class NumberList<T extends Numbers = Uint32Array> {
  length = 0;
  private data: T;

  constructor(private make: (length: number) => T) {
    this.data = make(64);
  }

  at(index: number): number {
    return this.data[index];
  }

  push(value: number): void {
    if (this.length === this.data.length) {
      const grown = this.make(this.data.length * 2);
      grown.set(this.data);
      this.data = grown;
    }
    this.data[this.length++] = value;
  }

  cut(length: number): void {
    this.length = Math.min(length, this.length);
  }

  /** Remove the numbers at positions `from` up to `to`. */
  remove(from: number, to: number): void {
    this.data.copyWithin(from, to, this.length);
    this.length -= to - from;
  }

  /** The numbers from position `from` on, as a copy. */
  tail(from: number): T {
    return this.data.slice(from, this.length) as T;
  }
}

/** The first position in 0..length whose `key` is at least `wanted`; keys ascend. */
export function lowerBound(length: number, key: (position: number) => number, wanted: number): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (key(middle) < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

export const uint8 = (length: number): Uint8Array => new Uint8Array(length);
export const uint16 = (length: number): Uint16Array => new Uint16Array(length);
export const uint32 = (length: number): Uint32Array => new Uint32Array(length);
export const float64 = (length: number): Float64Array => new Float64Array(length);
