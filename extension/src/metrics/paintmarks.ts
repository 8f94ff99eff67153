/** Marks in a plot: values that are not finite, and the letters of compared runs. */
import type { BadValue } from './answer';
import type { Axis } from './axis';
import { letterOf } from './comparison';
import type { Line } from './lines';
import { colourOf, MARGIN, type Context, type Plot } from './plotstyle';

const MARK = 3.5;

/** Mark values that are not finite at the edge of the plot: × for NaN, triangles for infinities. */
export function paintMarks(context: Context, line: Line, { range, colours }: Plot, x: Axis, height: number): void {
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

/** Paint the letter of a compared run where its line ends. */
export function paintLetter(context: Context, line: Line, plot: Plot, x: Axis, y: Axis): void {
  const { curve, smooth, other = 0 } = line;
  const ys = smooth ?? curve.mean;
  const { from, to } = plot.range;
  for (let i = curve.x.length - 1; i >= 0; i--) {
    const top = y.length - y.pixel(ys[i]);
    if (curve.x[i] >= from && curve.x[i] <= to && Number.isFinite(top)) {
      context.font = `bold 10px ${plot.colours.font}`;
      context.textAlign = 'right';
      context.textBaseline = 'bottom';
      context.lineWidth = 3;
      context.strokeStyle = plot.colours.background;
      context.fillStyle = colourOf(line, plot.colours);
      const place: [string, number, number] = [letterOf(other), x.pixel(curve.x[i]), Math.max(8, top - 2)];
      context.strokeText(...place);
      context.fillText(...place);
      return;
    }
  }
}
