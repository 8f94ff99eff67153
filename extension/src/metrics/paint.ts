/** A plot on its canvas: axes, bands, curves with gaps, and marks where a value is no finite number. */
import { ticks, TimeScale, type Range } from '../timeline/range';
import type { BadValue } from './answer';
import { Axis, linearTicks, logTicks, shownValues } from './axis';
import type { XAxis } from './choice';
import { inSight } from './curves';
import { extremes, type Line } from './lines';

/** Room for the labels of the axes; style/metrics.css has the same. */
export const MARGIN = { left: 46, right: 8, top: 6, bottom: 18 };
/** Pixels between labels. */
const APART = { x: 64, y: 28 };
const MARK = 3.5;
/** Points that are farther apart than this are dots as well. */
const DOTTED = 14;
const PALE = 0.3;
const BAND = 0.16;
/** Ranks that share a colour with one before them are dashed. */
const DASHES = [[], [5, 3], [2, 2], [7, 2, 2, 2]];

export interface Colours {
  /** Of ranks, which share them. */
  ranks: readonly string[];
  ink: string;
  faint: string;
  line: string;
  accent: string;
  font: string;
  background: string;
}

export interface Plot {
  lines: readonly Line[];
  axis: XAxis;
  range: Range;
  isLog: boolean;
  /** In CSS pixels, with the margins. */
  width: number;
  height: number;
  ratio: number;
  colours: Colours;
  /** Where the pointer is. */
  cursor: number | null;
  /** What is being selected. */
  part: Range | null;
}

type Context = CanvasRenderingContext2D;

/** Paint it; returns whether there is any value to be seen. */
export function paintPlot(context: Context, plot: Plot): boolean {
  const { width, height, ratio, colours } = plot;
  const { x, y, inner } = placesOf(plot);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = colours.background;
  context.fillRect(0, 0, width, height);
  context.translate(MARGIN.left, MARGIN.top);
  paintAxes(context, plot, x, y, inner);
  context.save();
  context.beginPath();
  context.rect(0, -MARGIN.top, inner.width, inner.height + MARGIN.top);
  context.clip();
  if (y) {
    plot.lines.forEach(line => paintLine(context, line, plot, x, y));
  }
  plot.lines.forEach(line => paintMarks(context, line, plot, x, inner.height));
  context.restore();
  return y !== null;
}

interface Places {
  x: Axis;
  /** Null where there is no value. */
  y: Axis | null;
  /** Without the margins. */
  inner: { width: number; height: number };
}

function placesOf({ lines, range, isLog, width, height }: Plot): Places {
  const inner = { width: Math.max(1, width - MARGIN.left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom };
  const values = shownValues(...extremes(lines, range, isLog), isLog);
  return { x: new Axis(range, inner.width), y: values && new Axis(values, inner.height, isLog), inner };
}

function colourOf({ rank }: Line, { ranks, ink }: Colours): string {
  return rank === null ? ink : ranks[rank % ranks.length];
}

function paintAxes(context: Context, plot: Plot, x: Axis, y: Axis | null, inner: { width: number; height: number }): void {
  const { colours, ratio } = plot;
  context.font = `10px ${colours.font}`;
  context.lineWidth = 1 / ratio;
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  const crisp = (place: number): number => (Math.round(place * ratio) + 0.5) / ratio;
  for (const { at, label } of y ? yTicks(y) : []) {
    const place = crisp(inner.height - y!.pixel(at));
    context.strokeStyle = colours.line;
    context.beginPath();
    context.moveTo(0, place);
    context.lineTo(inner.width, place);
    context.stroke();
    context.fillStyle = colours.faint;
    context.fillText(label, -5, place, MARGIN.left - 6);
  }
  context.strokeStyle = colours.faint;
  context.strokeRect(crisp(0), crisp(-MARGIN.top), crisp(inner.width - 1) - crisp(0), crisp(inner.height) - crisp(-MARGIN.top));
  context.textAlign = 'center';
  context.fillStyle = colours.faint;
  let free = -MARGIN.left;
  for (const { at, label } of xTicks(plot, x)) {
    const place = crisp(x.pixel(at));
    const half = context.measureText(label).width / 2;
    // The last one must not be cut off, nor any touch the one before it.
    const middle = Math.min(place, inner.width + MARGIN.right - half);
    context.fillRect(place - 0.5 / ratio, inner.height, 1 / ratio, 3);
    if (middle - half >= free) {
      context.fillText(label, middle, inner.height + 11);
      free = middle + half + 8;
    }
  }
}

function yTicks(y: Axis): Array<{ at: number; label: string }> {
  const most = Math.max(2, Math.floor(y.length / APART.y));
  return y.isLog ? logTicks(y.range, most) : linearTicks(y.range, most);
}

function xTicks({ axis, range }: Plot, x: Axis): Array<{ at: number; label: string }> {
  const most = Math.max(2, Math.floor(x.length / APART.x));
  if (axis === 'step') {
    return linearTicks(range, most, range.to - range.from > 2 ? 1 : 0);
  }
  return ticks(new TimeScale(range, x.length), x.length / most).map(({ t, label }) => ({ at: t, label }));
}

function paintLine(context: Context, line: Line, plot: Plot, x: Axis, y: Axis): void {
  const { curve, smooth, hasBand, rank } = line;
  const place = (value: number): number => plot.height - MARGIN.top - MARGIN.bottom - y.pixel(value);
  const [first, last] = inSight(curve, plot.range);
  const colour = colourOf(line, plot.colours);
  context.fillStyle = context.strokeStyle = colour;
  context.lineJoin = 'bevel';
  if (hasBand) {
    context.globalAlpha = BAND;
    fillBand(context, line, first, last, x, place);
  }
  const dash = plot.lines.length > 1 ? DASHES[Math.floor((rank ?? 0) / plot.colours.ranks.length) % DASHES.length] : [];
  context.setLineDash(plot.lines.length <= 4 * plot.colours.ranks.length ? dash : []);
  const isCrowded = plot.lines.length > 2 * plot.colours.ranks.length;
  if (smooth) {
    context.globalAlpha = PALE;
    context.lineWidth = 1;
    stroke(context, curve.x, curve.mean, first, last, x, place);
  }
  context.globalAlpha = isCrowded ? 0.7 : 1;
  context.lineWidth = isCrowded ? 1 : 1.5;
  stroke(context, curve.x, smooth ?? curve.mean, first, last, x, place);
  context.setLineDash([]);
  context.globalAlpha = 1;
}

/** A line with gaps where there is no value; a point between gaps, and points with room around them, are dots. */
function stroke(
  context: Context,
  xs: Float64Array,
  ys: Float64Array,
  first: number,
  last: number,
  x: Axis,
  place: (value: number) => number
): void {
  const dots: Array<[number, number]> = [];
  const isSparse = last - first > 0 && x.length / (last - first) >= DOTTED;
  let isOpen = false;
  context.beginPath();
  for (let i = first; i < last; i++) {
    const [left, top] = [x.pixel(xs[i]), place(ys[i])];
    if (!Number.isFinite(top)) {
      isOpen = false;
      continue;
    }
    const isAlone = !isOpen && !(i + 1 < last && Number.isFinite(place(ys[i + 1])));
    if (isAlone || isSparse) {
      dots.push([left, top]);
    }
    if (isOpen) {
      context.lineTo(left, top);
    } else {
      context.moveTo(left, top);
      isOpen = true;
    }
  }
  context.stroke();
  for (const [left, top] of dots) {
    context.beginPath();
    context.arc(left, top, 2, 0, 7);
    context.fill();
  }
}

/** From lowest to highest, piece by piece between gaps. */
function fillBand(
  context: Context,
  { curve }: Line,
  first: number,
  last: number,
  x: Axis,
  place: (value: number) => number
): void {
  const { low, high } = curve;
  context.beginPath();
  for (let i = first; i < last; ) {
    const begin = i;
    while (i < last && Number.isFinite(place(low[i])) && Number.isFinite(place(high[i]))) {
      context.lineTo(x.pixel(curve.x[i]), place(high[i]));
      i += 1;
    }
    for (let back = i - 1; back >= begin; back--) {
      context.lineTo(x.pixel(curve.x[back]), place(low[back]));
    }
    context.closePath();
    // To the next piece, past what has no value.
    i = Math.max(i, begin) + 1;
    if (i < last) {
      context.moveTo(x.pixel(curve.x[i]), place(high[i]));
    }
  }
  context.fill();
}

/** What cannot be drawn at its value has a mark at the edge: × for NaN, and triangles for infinities. */
function paintMarks(context: Context, line: Line, { range, colours }: Plot, x: Axis, height: number): void {
  const drawn = new Set<string>();
  context.strokeStyle = context.fillStyle = colourOf(line, colours);
  context.lineWidth = 1.5;
  for (const { x: at, value } of line.curve.bad) {
    const left = x.pixel(at);
    const key = `${Math.round(left / 2)} ${value}`;
    if (at >= range.from && at <= range.to && !drawn.has(key)) {
      drawn.add(key);
      paintMark(context, value, left, height);
    }
  }
}

function paintMark(context: Context, value: BadValue, left: number, height: number): void {
  context.beginPath();
  if (value === 'NaN') {
    const middle = height - MARK - 2;
    context.moveTo(left - MARK, middle - MARK);
    context.lineTo(left + MARK, middle + MARK);
    context.moveTo(left + MARK, middle - MARK);
    context.lineTo(left - MARK, middle + MARK);
    context.stroke();
    return;
  }
  const [tip, base] = value === 'Infinity' ? [-MARGIN.top + 1, 2 * MARK - MARGIN.top + 2] : [height - 1, height - 2 * MARK - 2];
  context.moveTo(left, tip);
  context.lineTo(left - MARK, base);
  context.lineTo(left + MARK, base);
  context.fill();
}

/** Paint on a canvas of its own where the pointer is, and what is being selected. */
export function paintOver(context: Context, plot: Plot): void {
  const { part, cursor, colours, lines, ratio } = plot;
  const { x, y, inner } = placesOf(plot);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, plot.width, plot.height);
  context.translate(MARGIN.left, MARGIN.top);
  const high = inner.height + MARGIN.top;
  if (part) {
    const [left, right] = [x.pixel(part.from), x.pixel(part.to)];
    context.fillStyle = colours.accent;
    context.globalAlpha = 0.14;
    context.fillRect(left, -MARGIN.top, right - left, high);
    context.globalAlpha = 1;
    context.fillRect(left - 1, -MARGIN.top, 1, high);
    context.fillRect(right, -MARGIN.top, 1, high);
  }
  if (cursor === null) {
    return;
  }
  const place = (Math.round(x.pixel(cursor) * ratio) + 0.5) / ratio;
  context.fillStyle = colours.faint;
  context.fillRect(place - 0.5 / ratio, -MARGIN.top, 1 / ratio, high);
  for (const line of y && lines.length <= DASHES.length * colours.ranks.length ? lines : []) {
    const i = line.curve.x.indexOf(cursor);
    const value = i < 0 ? NaN : (line.smooth ?? line.curve.mean)[i];
    const top = inner.height - y!.pixel(value);
    if (Number.isFinite(top)) {
      context.fillStyle = colourOf(line, colours);
      context.beginPath();
      context.arc(place, top, 3, 0, 7);
      context.fill();
    }
  }
}
