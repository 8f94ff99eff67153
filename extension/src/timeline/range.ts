/** Time ranges in microseconds, and their mapping to pixels. */

export interface Range {
  readonly from: number;
  readonly to: number;
}

/** Shortest range in microseconds, as times are in whole microseconds. */
export const SHORTEST = 10;
/** Padding at each end, as a share of the range. */
const AIR = 0.01;

export class TimeScale {
  /** Microseconds per pixel. */
  readonly perPixel: number;

  constructor(
    readonly range: Range,
    readonly width: number
  ) {
    this.perPixel = (range.to - range.from) / Math.max(width, 1);
  }

  x(t: number): number {
    return (t - this.range.from) / this.perPixel;
  }

  t(x: number): number {
    return this.range.from + x * this.perPixel;
  }
}

/** Return the range with padding at both ends. */
export function aired({ from, to }: Range): Range {
  const air = Math.max((to - from) * AIR, SHORTEST / 2);
  return { from: from - air, to: to + air };
}

/** Zoom so that `at` stays in place on the screen; a factor below 1 zooms in. */
export function zoomed({ from, to }: Range, at: number, factor: number, bounds: Range, shortest = SHORTEST): Range {
  const most = bounds.to - bounds.from;
  const span = Math.min(Math.max((to - from) * factor, Math.min(shortest, most)), most);
  const share = (at - from) / (to - from);
  return inside({ from: at - share * span, to: at + (1 - share) * span }, bounds);
}

export function panned({ from, to }: Range, by: number, bounds: Range): Range {
  return inside({ from: from + by, to: to + by }, bounds);
}

/** Shift the range into the bounds; shorten it only if it is longer than they are. */
export function inside({ from, to }: Range, bounds: Range): Range {
  const span = Math.min(to - from, bounds.to - bounds.from);
  const start = Math.min(Math.max(from, bounds.from), bounds.to - span);
  return { from: start, to: start + span };
}

/** Return `range` if it shows `what`, or a part of it if `what` is longer; otherwise a range around `what`. */
export function showing(range: Range, what: Range, bounds: Range): Range {
  const span = range.to - range.from;
  const length = what.to - what.from;
  const isSeen = what.to >= range.from && what.from <= range.to;
  if (length > span) {
    return isSeen ? range : inside({ from: what.from - length * 0.1, to: what.to + length * 0.1 }, bounds);
  }
  if (what.from >= range.from && what.to <= range.to) {
    return range;
  }
  const middle = (what.from + what.to) / 2;
  return inside({ from: middle - span / 2, to: middle + span / 2 }, bounds);
}

export interface Tick {
  t: number;
  label: string;
}

/** Return ticks at round times, at least `apart` pixels from each other. */
export function ticks({ range, perPixel }: TimeScale, apart = 90): Tick[] {
  const least = perPixel * apart;
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  const step = power * ([1, 2, 5].find(factor => factor * power >= least) ?? 10);
  const found: Tick[] = [];
  for (let i = Math.ceil(range.from / step); i * step <= range.to; i++) {
    found.push({ t: i * step, label: tickLabel(i * step, step) });
  }
  return found;
}

/** Format a time with the digits that tell it from its neighbors: `1.25 s`, `0.00032 s`, `1:05`. */
function tickLabel(t: number, step: number): string {
  if (t === 0) {
    return '0 s';
  }
  if (step >= 60e6) {
    const s = Math.round(Math.abs(t) / 1e6);
    const two = (n: number): string => String(n).padStart(2, '0');
    return `${t < 0 ? '−' : ''}${s >= 3600 ? `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}` : Math.floor(s / 60)}:${two(s % 60)}`;
  }
  const digits = Math.max(0, Math.ceil(6 - Math.log10(step) - 1e-9));
  return `${decimals(digits).format(t / 1e6).replace('-', '−')} s`;
}

const formats: Intl.NumberFormat[] = [];

/** Return a cached format: creating one takes longer than anything else done for the ruler in a frame. */
function decimals(digits: number): Intl.NumberFormat {
  return (formats[digits] ??= new Intl.NumberFormat('en', { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

/** Format a duration with three digits: `12.3 ms`, `450 µs`, `1.20 s`. */
export function lasting(micros: number): string {
  const size = Math.abs(micros);
  if (size < 1000) {
    return `${Math.round(micros)} µs`;
  }
  if (size < 999_500) {
    return `${(micros / 1000).toPrecision(3)} ms`;
  }
  if (size < 999.5e6) {
    return `${(micros / 1e6).toPrecision(3)} s`;
  }
  const s = Math.round(micros / 1e6);
  return s < 7200 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${(s / 3600).toFixed(1)} h`;
}
