/** Metrics as comma-separated values: every point, in as many requests as that takes. */
import type { Range } from '../timeline/range';
import { quoted } from '../timeline/tables';
import type { MetricsAnswer } from './answer';
import type { XAxis } from './choice';
import type { MetricsServer } from './source';

/** Points to request: more than the server returns at once. */
const MOST = 1_000_000;
/** Ranges up to this length are not divided further, even if points share a bucket. */
const SHORTEST: { [axis in XAxis]: number } = { step: 1e-3, time: 1 };

/** Return the text of a CSV file: for each run, one metric after the other. */
export async function metricsCsv(server: MetricsServer, ids: readonly string[], axis: XAxis, names: readonly string[]): Promise<string> {
  const head = axis === 'time' ? 'seconds' : 'step';
  const lines = [`name,rank,${head},value,lowest,highest,points,run\n`];
  for (const [id, name] of ids.flatMap(id => names.map(name => [id, name] as const))) {
    const ask = (range: Range | null): Promise<MetricsAnswer> =>
      server.metrics(id, { axis, range, names: [name], points: MOST });
    const whole = await ask(null);
    const about = whole.names.find(each => each.name === name);
    if (about) {
      const [from, to] = axis === 'time' ? about.t : about.steps;
      // If the reply is from a coarse copy: a request with a range is answered from every point.
      const answer = whole.exact ? whole : await ask({ from, to });
      const found = await linesIn({ from, to }, answer, axis, ask);
      // One by one: a call takes some hundred thousand arguments at most.
      found.forEach(each => lines.push(`${each},${quoted(id)}\n`));
    }
  }
  return lines.join('');
}

/** Return the lines of a reply; if some buckets have several points, request both halves of the range instead. */
async function linesIn(
  { from, to }: Range,
  answer: MetricsAnswer,
  axis: XAxis,
  ask: (range: Range) => Promise<MetricsAnswer>
): Promise<string[]> {
  const isCut = answer.curves.some(({ count }) => {
    const points = count.reduce((sum, each) => sum + each, 0);
    return points > answer.points && points > count.length;
  });
  if (!isCut || to - from <= SHORTEST[axis]) {
    return answer.curves.flatMap(curve => curve.x.map((x, i) => line(curve, x, i, axis)));
  }
  const middle = (from + to) / 2;
  // A point on the boundary must not be in both.
  const halves: Range[] = [{ from, to: middle }, { from: next(middle), to }];
  const lines: string[] = [];
  for (const half of halves) {
    const found = await linesIn(half, await ask(half), axis, ask);
    found.forEach(each => lines.push(each));
  }
  return lines;
}

/** Return the smallest number that is larger. */
function next(x: number): number {
  const bits = new DataView(new ArrayBuffer(8));
  bits.setFloat64(0, x === 0 ? 0 : x);
  const read = bits.getBigInt64(0);
  bits.setBigInt64(0, x < 0 ? read - 1n : read + 1n);
  return bits.getFloat64(0);
}

function line(curve: MetricsAnswer['curves'][number], x: number, i: number, axis: XAxis): string {
  const { name, rank, mean, low, high, count, bad = [] } = curve;
  const before = bad.filter(each => each.x <= x);
  const value = mean[i] ?? before[before.length - 1]?.value ?? 'NaN';
  const place = axis === 'time' ? x / 1e6 : x;
  const spread = (count[i] ?? 1) > 1 ? `${low[i] ?? ''},${high[i] ?? ''},${count[i]}` : ',,1';
  return `${quoted(name)},${rank},${place},${value},${spread}`;
}
