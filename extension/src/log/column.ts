/**
 * A growing column of numbers in typed arrays: a million lines must not be a million objects.
 *
 * Blocks are small, so that a run with ten lines takes little memory, and any of them can be dropped.
 */

type Numbers = Uint8Array | Uint16Array | Uint32Array | Float64Array;

const BITS = 11;
export const BLOCK = 1 << BITS;
const MASK = BLOCK - 1;

export class Column<T extends Numbers = Uint32Array> {
  private blocks: Array<T | undefined> = [];

  constructor(private make: new (length: number) => T) {}

  get(index: number): number {
    const block = this.blocks[index >>> BITS];
    return block === undefined ? 0 : block[index & MASK];
  }

  set(index: number, value: number): void {
    let block = this.blocks[index >>> BITS];
    if (block === undefined) {
      block = new this.make(BLOCK);
      this.blocks[index >>> BITS] = block;
    }
    block[index & MASK] = value;
  }

  /** Drop the numbers `from` up to `to`, both multiples of BLOCK; they read as 0 from then on. */
  drop(from: number, to: number): void {
    for (let block = from >>> BITS; block < to >>> BITS; block++) {
      this.blocks[block] = undefined;
    }
  }
}

/** A dense list of numbers that grows at the end and can be cut short. */
export class NumberList {
  length = 0;
  private data = new Uint32Array(64);

  at(index: number): number {
    return this.data[index];
  }

  push(value: number): void {
    if (this.length === this.data.length) {
      const grown = new Uint32Array(this.data.length * 2);
      grown.set(this.data);
      this.data = grown;
    }
    this.data[this.length++] = value;
  }

  cut(length: number): void {
    this.length = Math.min(length, this.length);
  }

  /** The numbers from position `from` on, as a copy. */
  tail(from: number): Uint32Array {
    return this.data.slice(from, this.length);
  }
}
