/** Format the amounts of a table column: one unit and one number of decimals for all rows. */

export interface Scale {
  unit: string;
  /** Format a time, given in microseconds, without the unit. */
  text(micros: number): string;
}

/** Upper limit in microseconds (exclusive), unit, microseconds per unit, and decimals. */
const STEPS: ReadonlyArray<[number, string, number, number]> = [
  [1e3, 'µs', 1, 0],
  [1e5, 'ms', 1e3, 2],
  [1e6, 'ms', 1e3, 1],
  [1e7, 's', 1e6, 3],
  [1e8, 's', 1e6, 2],
  [1e9, 's', 1e6, 1],
  [Infinity, 's', 1e6, 0]
];

/** Return the scale for times of which the longest is `most` microseconds. */
export function scaleFor(most: number): Scale {
  const [, unit, by, digits] = STEPS.find(([limit]) => most < limit) ?? STEPS[STEPS.length - 1];
  const format = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return { unit, text: micros => (micros / by).toLocaleString('en', format) };
}

/** Return a share as a rounded percentage: `31 %`; `0 %` of nothing. */
export function percent(part: number, whole: number): string {
  return `${whole ? Math.floor((100 * part) / whole + 0.5) : 0} %`;
}

/** Format a number of bytes: `830 B`, `12.5 kB`, `1.2 GB`. */
export function size(count: number): string {
  const units = ['B', 'kB', 'MB', 'GB'];
  let unit = 0;
  for (; count >= 999.5 && unit < units.length - 1; unit++) {
    count /= 1000;
  }
  return `${count.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}
