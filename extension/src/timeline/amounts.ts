/** Amounts for columns of a table: one unit for all, decimals under decimals. */

export interface Scale {
  unit: string;
  /** Without the unit. */
  text(micros: number): string;
}

/** Upper limits in microseconds, with the unit and the decimals up to there. */
const STEPS: ReadonlyArray<[number, string, number, number]> = [
  [1e3, 'µs', 1, 0],
  [1e5, 'ms', 1e3, 2],
  [1e6, 'ms', 1e3, 1],
  [1e7, 's', 1e6, 3],
  [1e8, 's', 1e6, 2],
  [1e9, 's', 1e6, 1],
  [Infinity, 's', 1e6, 0]
];

/** How to write times of which the longest is `most` microseconds. */
export function scaleFor(most: number): Scale {
  const [, unit, by, digits] = STEPS.find(([limit]) => most < limit) ?? STEPS[STEPS.length - 1];
  const format = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return { unit, text: micros => (micros / by).toLocaleString('en', format) };
}

/** `31 %` */
export function percent(part: number, whole: number): string {
  return `${Math.floor((100 * part) / whole + 0.5)} %`;
}

/** Bytes as a person says them: `830 B`, `12.5 kB`, `1.2 GB`. */
export function size(count: number): string {
  const units = ['B', 'kB', 'MB', 'GB'];
  let unit = 0;
  for (; count >= 999.5 && unit < units.length - 1; unit++) {
    count /= 1000;
  }
  return `${count.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}
