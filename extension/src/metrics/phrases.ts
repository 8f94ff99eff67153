/** Texts about metrics: in the tooltip, beside a plot's name, and for screen readers. */
import { trans } from '../translation';
import { exactMoment, grouped } from '../words';
import type { Curve, NameInfo, RankCurve } from './answer';
import { reading } from './axis';
import type { XAxis } from './choice';
import { letterOf } from './comparison';
import { badAt, lastOf, nearest, reach } from './curves';
import type { Line } from './lines';

/** With more ranks than this, their values are summarized. */
const EACH = 8;

export interface TipRow {
  /** The rank whose color the row has; null for none. */
  rank: number | null;
  /** Index of the compared run that the row is about. */
  other?: number;
  text: string;
}

interface Reading {
  rank: number | null;
  /** As it is drawn: smoothed if smoothing is on. */
  value: number;
  text: string;
}

/** Describe a place: `step 41` or `+1.200 s`; `near step 41` for several points. `fine` is as for `exactMoment`. */
export function placeWords(axis: XAxis, x: number, isEachPoint = true, fine = Infinity): string {
  if (axis === 'step' && !isEachPoint) {
    return trans.__('near step %1', grouped(Math.round(x)));
  }
  return axis === 'time' ? exactMoment(x, fine) : trans.__('step %1', Number.isInteger(x) ? grouped(x) : reading(x));
}

/** Return the tooltip's rows about the lines at a place. */
export function tipRows(lines: readonly Line[], ranks: readonly RankCurve[], x: number): TipRow[] {
  const rows = lines.flatMap(line => {
    const said = readingAt(line, x);
    return said ? [said] : [];
  });
  if (rows.length === 0) {
    return [{ rank: null, text: trans.__('no value here') }];
  }
  if (lines.length === 1 && lines[0].rank === null) {
    return [{ rank: null, text: trans.__('mean of ranks: %1', rows[0].text) }, ...spread(ranks, x)];
  }
  if (rows.length > EACH) {
    return spread(ranks, x, true);
  }
  return rows.map(({ rank, text }) => ({ rank, text: trans.__('rank %1: %2', rank, text) }));
}

/** Return the tooltip's rows about compared runs at a place, with the difference of this run. */
export function otherRows(lines: readonly Line[], others: readonly Line[], x: number): TipRow[] {
  const ours = lines.flatMap(line => readingAt(line, x)?.value ?? []).filter(Number.isFinite);
  const mean = ours.reduce((sum, value) => sum + value, 0) / ours.length;
  return others.map(line => {
    const { other = 0 } = line;
    const said = readingAt(line, x);
    const letter = letterOf(other);
    const apart = said ? mean - said.value : NaN;
    const text = !said
      ? trans.__('%1: no value here', letter)
      : Number.isFinite(apart)
        ? trans.__('%1: %2 (this run %3)', letter, said.text, (apart > 0 ? '+' : '') + reading(Number(apart.toPrecision(3))))
        : `${letter}: ${said.text}`;
    return { rank: null, other, text };
  });
}

/** Return rows with the lowest and the highest value and their ranks, and the mean if requested. */
function spread(ranks: readonly RankCurve[], x: number, withMean = false): TipRow[] {
  const values = ranks.flatMap(curve => {
    const i = at(curve, x);
    return i >= 0 ? [{ rank: curve.rank, value: curve.mean[i] }] : [];
  });
  const finite = values.filter(({ value }) => Number.isFinite(value)).sort((a, b) => a.value - b.value);
  const gone = values.length - finite.length;
  const [least, most] = [finite[0], finite[finite.length - 1]];
  const mean = finite.reduce((sum, { value }) => sum + value, 0) / finite.length;
  return [
    ...(withMean && least ? [{ rank: null, text: trans._n('mean of %1 rank: %2', 'mean of %1 ranks: %2', finite.length, reading(mean)) }] : []),
    ...(least ? [{ rank: least.rank, text: trans.__('lowest: %1 (rank %2)', reading(least.value), least.rank) }] : []),
    ...(most ? [{ rank: most.rank, text: trans.__('highest: %1 (rank %2)', reading(most.value), most.rank) }] : []),
    ...(gone ? [{ rank: null, text: trans._n('not finite on %1 rank', 'not finite on %1 ranks', gone) }] : [])
  ];
}

function readingAt({ rank, curve, smooth }: Line, x: number): Reading | null {
  const i = at(curve, x);
  if (i < 0) {
    return null;
  }
  const value = curve.mean[i];
  if (!Number.isFinite(value)) {
    return { rank, value, text: reading(Number(badAt(curve.bad, curve.x[i]) ?? NaN)) };
  }
  const raw = reading(value);
  const more: string[] = [];
  if (curve.count[i] > 1 && rank !== null) {
    more.push(trans.__('mean of %1 points, %2 to %3', grouped(curve.count[i]), reading(curve.low[i]), reading(curve.high[i])));
  }
  if (smooth) {
    more.push(trans.__('smoothed %1', reading(smooth[i])));
  }
  return { rank, value: smooth ? smooth[i] : value, text: more.length ? `${raw} (${more.join('; ')})` : raw };
}

/** Return the bucket that covers a place, or -1. */
function at(curve: Curve, x: number): number {
  const i = nearest(curve, x);
  return i >= 0 && Math.abs(curve.x[i] - x) <= reach(curve, i) ? i : -1;
}

/** Return the last value, to show beside a plot's name: of several ranks, the lowest and highest, or the mean. */
export function lastWords(lines: readonly Line[]): string {
  const values = lines.flatMap(({ curve }) => lastOf(curve)?.value ?? []);
  if (lines.length === 1 && lines[0].rank === null && values.length) {
    return trans.__('mean %1', reading(Number(values[0])));
  }
  const numbers = values.map(Number);
  const bad = numbers.find(value => !Number.isFinite(value));
  const finite = numbers.filter(Number.isFinite);
  const texts = finite.length ? [...new Set([Math.min(...finite), Math.max(...finite)].map(reading))] : [];
  return [texts.join(' – '), ...(bad === undefined ? [] : [reading(bad)])].filter(Boolean).join(', ');
}

/** Return the last values of compared runs, each after its letter. */
export function lastOfOthers(others: readonly Line[]): string[] {
  return others.flatMap(line => {
    const last = lastOf(line.curve);
    return last ? `${letterOf(line.other ?? 0)} ${reading(Number(last.value))}` : [];
  });
}

/** Describe a metric in a sentence, for screen readers. */
export function summary({ name, steps, t }: NameInfo, last: string, axis: XAxis): string {
  const [from, to] = (axis === 'time' ? t : steps).map(x => placeWords(axis, x));
  return trans.__('%1, from %2 to %3; last: %4', name, from, to, last);
}
