/** The axes of a plot: mapping of values to pixels, and ticks that are easy to read. */
import { grouped } from '../words';
import type { Range } from '../timeline/range';

export interface Tick {
  at: number;
  label: string;
}

/** Maps values to pixels from the start of the axis, on a linear or logarithmic scale. */
export class Axis {
  private from: number;
  private perPixel: number;

  constructor(
    readonly range: Range,
    readonly length: number,
    readonly isLog = false
  ) {
    this.from = this.of(range.from);
    this.perPixel = (this.of(range.to) - this.from) / Math.max(1, length);
  }

  /** Return the pixels from the start; NaN for a value that a logarithmic axis cannot show. */
  pixel(value: number): number {
    return (this.of(value) - this.from) / this.perPixel;
  }

  private of(value: number): number {
    return this.isLog ? (value > 0 ? Math.log10(value) : NaN) : value;
  }
}

/** Return the range to show, with padding: never empty, and above 0 if logarithmic. Null if there is no value. */
export function shownValues(least: number, most: number, isLog: boolean): Range | null {
  if (!(least <= most)) {
    return null;
  }
  if (isLog) {
    // Their quotient may overflow, so use the difference of the logarithms.
    const [low, high] = [Math.log10(least), Math.log10(most)];
    const air = Math.max((high - low) * 0.05, 0.02);
    return { from: Math.max(10 ** (low - air), Number.MIN_VALUE), to: Math.min(10 ** (high + air), Number.MAX_VALUE) };
  }
  const air = most > least ? (most - least) * 0.06 : Math.abs(most) * 0.05 || 1;
  return { from: least - air, to: most + air };
}

/** Return ticks at round numbers in a range, about `most` at most; `least` is the smallest step. */
export function linearTicks({ from, to }: Range, most: number, least = 0): Tick[] {
  const step = Math.max(roundStep((to - from) / Math.max(1, most)), least);
  if (!(step > 0) || !Number.isFinite(step)) {
    return [];
  }
  const found: Tick[] = [];
  const largest = Math.max(Math.abs(from), Math.abs(to));
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9 && found.length <= most + 1; i++) {
    found.push({ at: i * step, label: tickLabel(i * step, step, largest) });
  }
  return found;
}

/** Return ticks at powers of ten, with 2 and 5 between them if there are few; if fewer than two, at round numbers. */
export function logTicks(range: Range, most: number): Tick[] {
  const [low, high] = [Math.log10(range.from), Math.log10(range.to)];
  const decades = high - low;
  const every = Math.max(1, Math.ceil(decades / Math.max(1, most)));
  const factors = decades * 3 <= most ? [1, 2, 5] : [1];
  const found: Tick[] = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
    for (const factor of power % every === 0 ? factors : []) {
      const place = power + Math.log10(factor);
      // Computed logarithms may be slightly off.
      if (place >= low - 1e-9 && place <= high + 1e-9) {
        const at = factor * 10 ** power;
        found.push({ at, label: reading(at) });
      }
    }
  }
  return found.length > 1 ? found : linearTicks(range, most);
}

/** Return the smallest round number (1, 2 or 5 times a power of ten) that is not below `least`. */
export function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  // A rounding error must not lead to the next one.
  return power * ([1, 2, 5].find(factor => factor * power >= least * (1 - 1e-9)) ?? 10);
}

/** Format a tick with the digits that tell it from its neighbors. */
function tickLabel(value: number, step: number, largest: number): string {
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  if (Math.abs(value) < step / 2) {
    return '0';
  }
  if (largest >= 1e9 || digits > 5) {
    const precise = Math.max(0, Math.floor(Math.log10(Math.abs(value)) + 1e-9) - Math.floor(Math.log10(step) + 1e-9));
    return signed(exponential(value, precise));
  }
  return signed(digits ? value.toFixed(digits) : grouped(Math.round(value)));
}

/** Format a value for reading, with four digits: `0.4123`, `1,200`, `3.1e-5`. */
export function reading(value: number): string {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) {
    return Number.isNaN(value) ? 'NaN' : value > 0 ? '∞' : '−∞';
  }
  if (value === 0 || (Number.isInteger(value) && size < 1e9)) {
    return signed(grouped(value));
  }
  if (size < 1e-3 || size >= 1e6) {
    return signed(exponential(value, 3));
  }
  return signed(size >= 1e4 ? grouped(Math.round(value)) : String(Number(value.toPrecision(4))));
}

/** Format a value as `3.1e-5`, without trailing zeros. */
function exponential(value: number, digits: number): string {
  const [number, power] = value.toExponential(digits).split('e');
  return `${String(Number(number))}e${power.replace('+', '')}`;
}

function signed(text: string): string {
  return text.replace(/^-/, '−');
}
