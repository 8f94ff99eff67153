/** Paints a plot on its canvas: axes, bands, curves with gaps, and marks for values that are not finite. */
import { ticks, TimeScale } from '../timeline/range';
import { Axis, linearTicks, logTicks, shownValues } from './axis';
import { inSight } from './curves';
import { extremes, type Line } from './lines';
import { paintLetter, paintMarks } from './paintmarks';
import { colourOf, dashOf, DASHES, MARGIN, type Context, type Plot } from './plotstyle';

/** Minimum pixels between labels. */
const APART = { x: 64, y: 28 };
/** Points that are at least this many pixels apart are drawn as dots as well. */
const DOTTED = 14;
const PALE = 0.3;
const BAND = 0.16;
const OTHERS_BAND = 0.1;

/** Paint the plot; return whether any value is visible. */
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
  const lines = [...plot.others, ...plot.lines];
  if (y) {
    lines.forEach(line => paintLine(context, line, plot, x, y));
  }
  lines.forEach(line => paintMarks(context, line, plot, x, inner.height));
  if (y) {
    plot.others.forEach(line => paintLetter(context, line, plot, x, y));
  }
  context.restore();
  return y !== null;
}

interface Places {
  x: Axis;
  /** Null if there is no value. */
  y: Axis | null;
  /** The size without the margins. */
  inner: { width: number; height: number };
}

function placesOf({ lines, others, range, isLog, width, height }: Plot): Places {
  const inner = { width: Math.max(1, width - MARGIN.left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom };
  const values = shownValues(...extremes([...others, ...lines], range, isLog), isLog);
  return { x: new Axis(range, inner.width), y: values && new Axis(values, inner.height, isLog), inner };
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
    // The last label must not be cut off, and no label may touch the one before it.
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
  const { curve, smooth, hasBand, other } = line;
  const place = (value: number): number => plot.height - MARGIN.top - MARGIN.bottom - y.pixel(value);
  const [first, last] = inSight(curve, plot.range);
  const colour = colourOf(line, plot.colours);
  context.fillStyle = context.strokeStyle = colour;
  context.lineJoin = 'bevel';
  if (hasBand) {
    context.globalAlpha = other === undefined ? BAND : OTHERS_BAND;
    fillBand(context, line, first, last, x, place);
  }
  context.setLineDash(dashOf(line, plot));
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

/** Draw a line with gaps where there is no value; a point between gaps, and sparse points, are drawn as dots. */
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

/** Fill the band from lowest to highest, piece by piece between gaps. */
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
    // Go to the next piece, past the bucket without a value.
    i = Math.max(i, begin) + 1;
    if (i < last) {
      context.moveTo(x.pixel(curve.x[i]), place(high[i]));
    }
  }
  context.fill();
}

/** Paint the cursor and the range that is being selected, on a canvas of their own. */
export function paintOver(context: Context, plot: Plot): void {
  const { part, cursor, colours, lines, others, ratio } = plot;
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
  for (const line of y && lines.length <= DASHES.length * colours.ranks.length ? [...others, ...lines] : []) {
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
