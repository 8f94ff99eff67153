/** Metrics as comma-separated values: every point, in as many questions as that takes. */
import type { Range } from '../timeline/range';
import { quoted } from '../timeline/tables';
import type { MetricsAnswer } from './answer';
import type { XAxis } from './choice';
import type { MetricsServer } from './source';

/** More than the server answers at once. */
const MOST = 1_000_000;
/** Where a range is not divided any more, though points share a bucket. */
const SHORTEST: { [axis in XAxis]: number } = { step: 1e-3, time: 1 };

/** The lines of a file: of each run, each metric for itself. */
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
      // Where it was answered from a coarse copy, a part is answered from every point.
      const answer = whole.exact ? whole : await ask({ from, to });
      const found = await linesIn({ from, to }, answer, axis, ask);
      // One by one: an engine takes some hundred thousand arguments at most.
      found.forEach(each => lines.push(`${each},${quoted(id)}\n`));
    }
  }
  return lines.join('');
}

/** What an answer says, or of buckets of several points what its two halves say. */
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
  // A point on the edge would be in both.
  const halves: Range[] = [{ from, to: middle }, { from: next(middle), to }];
  const lines: string[] = [];
  for (const half of halves) {
    const found = await linesIn(half, await ask(half), axis, ask);
    found.forEach(each => lines.push(each));
  }
  return lines;
}

/** The smallest number that is larger. */
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
