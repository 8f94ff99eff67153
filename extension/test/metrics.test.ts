import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { curveOf, readAnswer, type Curve, type MetricsAnswer, type NameInfo } from '../src/metrics/answer';
import { Axis, linearTicks, logTicks, reading, shownValues } from '../src/metrics/axis';
import { Choice } from '../src/metrics/choice';
import { metricsCsv } from '../src/metrics/csv';
import { inSight, lastOf, nearest, overRanks, smoothed } from '../src/metrics/curves';
import { extremes, linesOf, nextPlace, snap } from '../src/metrics/lines';
import { lastWords, tipRows } from '../src/metrics/phrases';
import { pick } from '../src/metrics/pick';
import { MetricsSource, type Question, type Sought } from '../src/metrics/source';
import { RunModel } from '../src/run/model';
import { Look } from '../src/timeline/look';

const CLOSE = 1e-12;

/** Return a curve through these values at 0, 1, 2, …; null is a gap. */
function curve(values: Array<number | null>, count: number[] = [], x = values.map((_, i) => i)): Curve {
  return curveOf({ x, mean: values, low: values, high: values, count }, []);
}

function info(name: string, ranks = [0, 1], points = 100): NameInfo {
  return { name, ranks, points, steps: [0, points - 1], t: [0, points * 1000] };
}

/** Return curves that fall from 100, a point per step, in at most `points` buckets. */
function answerTo({ axis, range, points, names }: Question, all: NameInfo[], most = 4000): MetricsAnswer {
  const told = names.length ? all.filter(({ name }) => names.includes(name)) : all.slice(0, 20);
  const room = Math.min(points, most);
  const curves = told.flatMap(({ name, ranks, points: length, t, steps }) =>
    ranks.map(rank => {
      const place = (i: number): number => (axis === 'time' ? t[0] + 1000 * i : steps[0] + i);
      const seen = Array.from({ length }, (_, i) => i).filter(i => !range || (place(i) >= range.from && place(i) <= range.to));
      const size = seen.length > room ? Math.ceil(seen.length / room) : 1;
      const heads = seen.filter((_, k) => k % size === 0);
      const last = (k: number): number => Math.min(k * size + size - 1, seen.length - 1);
      const value = (i: number): number => 100 - i + rank;
      return {
        name, rank,
        x: heads.map((i, k) => (place(i) + place(seen[last(k)])) / 2),
        mean: heads.map((i, k) => (value(i) + value(seen[last(k)])) / 2),
        high: heads.map(value),
        low: heads.map((_, k) => value(seen[last(k)])),
        count: heads.map((_, k) => last(k) - k * size + 1),
        bad: []
      };
    })
  );
  return { state: 'done', names: all, points: room, curves, over_ranks: [], notes: [], exact: true };
}

class Server {
  asked: Question[] = [];
  failure = '';

  constructor(
    private all: NameInfo[],
    private most = 4000
  ) {}

  async metrics(_id: string, question: Question): Promise<MetricsAnswer> {
    this.asked.push(question);
    await Promise.resolve();
    if (this.failure) {
      throw new Error(this.failure);
    }
    return answerTo(question, this.all, this.most);
  }
}

function answered(source: MetricsSource): Promise<void> {
  return new Promise(resolve => {
    const listen = (): void => {
      source.changed.disconnect(listen);
      resolve();
    };
    source.changed.connect(listen);
  });
}

test('a smoothed curve does not begin at 0, and keeps its gaps', () => {
  assert.deepEqual([...smoothed(curve([5, 5, 5, 5]), 0.9)].map(value => Math.abs(value - 5) < CLOSE), [true, true, true, true]);
  const found = smoothed(curve([1, null, 3]), 0.5);
  assert.equal(found[0], 1);
  assert.ok(Number.isNaN(found[1]));
  // (0.25 · 1 + 0.5 · 3) / 0.75
  assert.ok(Math.abs(found[2] - 7 / 3) < CLOSE);
  assert.deepEqual([...smoothed(curve([4, 2]), 0)], [4, 2]);
});

test('a bucket is smoothed like the points that it contains', () => {
  const points = smoothed(curve([1, 2, 2, 2, 2]), 0.8);
  const buckets = smoothed(curve([1, 2], [1, 4]), 0.8);
  assert.ok(Math.abs(points[4] - buckets[1]) < CLOSE);
});

test('ticks are round, have the digits they need, and are not too many', () => {
  const labels = (from: number, to: number, most: number): string[] => linearTicks({ from, to }, most).map(({ label }) => label);
  assert.deepEqual(labels(0, 1, 5), ['0', '0.2', '0.4', '0.6', '0.8', '1.0']);
  assert.deepEqual(labels(-1.1, 1.2, 5), ['−1.0', '−0.5', '0', '0.5', '1.0']);
  assert.deepEqual(labels(0, 12_000, 3), ['0', '5,000', '10,000']);
  assert.deepEqual(labels(1e-7, 4e-7, 4), ['1e-7', '2e-7', '3e-7', '4e-7']);
  assert.deepEqual(labels(100_000, 100_030, 3), ['100,000', '100,010', '100,020', '100,030']);
  assert.deepEqual(linearTicks({ from: 3, to: 5 }, 8, 1).map(({ at }) => at), [3, 4, 5]);
  assert.deepEqual(labels(0, Infinity, 4), []);
});

test('logarithmic ticks: powers of ten, with 2 and 5 where there are few', () => {
  const labels = (from: number, to: number): string[] => logTicks({ from, to }, 6).map(({ label }) => label);
  assert.deepEqual(labels(0.5, 20), ['0.5', '1', '2', '5', '10', '20']);
  assert.deepEqual(labels(1e-5, 10), ['1e-5', '1e-4', '0.001', '0.01', '0.1', '1', '10']);
  assert.equal(logTicks({ from: 1e-30, to: 1e30 }, 6).length <= 8, true);
  assert.deepEqual(labels(3.1, 3.9).length > 1, true);
});

test('a logarithmic axis handles the smallest and largest floats', () => {
  const ends: Array<[number, number]> = [[1e-310, 1], [1e-310, 1e-310], [5e-324, 1.7e308], [1e308, 1.7e308]];
  for (const [least, most] of ends) {
    const range = shownValues(least, most, true)!;
    assert.ok(range.from > 0 && range.from < range.to && Number.isFinite(range.to), `${least}`);
    const ticks = logTicks(range, 6);
    assert.ok(ticks.length <= 8 && ticks.every(({ at }) => at > 0 && Number.isFinite(at)), `${least}`);
    const axis = new Axis(range, 100, true);
    assert.ok(axis.pixel(least) >= 0 && axis.pixel(most) <= 100.001, `${least}`);
  }
});

test('values are formatted for reading', () => {
  assert.deepEqual(
    [0, 0.41234, 1234567, 12, -0.5, 0.00003125, 2.5e7 + 0.5, NaN, Infinity, -Infinity, 12345.6].map(reading),
    ['0', '0.4123', '1,234,567', '12', '−0.5', '3.125e-5', '2.5e7', 'NaN', '∞', '−∞', '12,346']
  );
});

test('an axis is never empty, and a logarithmic one has nothing at or below 0', () => {
  const flat = shownValues(3, 3, false)!;
  assert.ok(flat.from < 3 && flat.to > 3);
  assert.ok(shownValues(0, 0, false)!.to > 0);
  assert.equal(shownValues(Infinity, -Infinity, false), null);
  const axis = new Axis({ from: 0.01, to: 100 }, 400, true);
  assert.ok(Math.abs(axis.pixel(1) - 200) < 1e-9);
  assert.ok(Number.isNaN(axis.pixel(0)) && Number.isNaN(axis.pixel(-1)));
});

test('the nearest bucket is found, even if steps go back', () => {
  const ascending = curve([1, 2, 3], [], [0, 10, 20]);
  assert.deepEqual([-5, 4, 6, 15.1, 99].map(x => nearest(ascending, x)), [0, 0, 1, 2, 2]);
  const back = curve([1, 2, 3, 4], [], [0, 10, 5, 6]);
  assert.deepEqual([nearest(back, 5.4), nearest(back, 9), nearest(curve([]), 1)], [2, 1, -1]);
  assert.deepEqual(inSight(ascending, { from: 9, to: 11 }), [0, 3]);
  assert.deepEqual(inSight(ascending, { from: 12, to: 13 }), [1, 3]);
  assert.deepEqual(inSight(back, { from: 9, to: 11 }), [0, 4]);
});

test('mean and spread of ranks allow for different steps and gaps', () => {
  const over = overRanks([curve([1, 2, null, 4]), curve([3, null, null, 6]), curve([10], [], [9])]);
  assert.deepEqual([...over.mean], [2, 2, NaN, 5]);
  assert.deepEqual([...over.low], [1, 2, NaN, 4]);
  assert.deepEqual([...over.high], [3, 2, NaN, 6]);
  const between = overRanks([curve([0, 0, 0]), curve([0, 10], [], [0, 2])]);
  assert.deepEqual([...between.high], [0, 5, 10]);
});

test('a rank contributes to the mean and spread only within its own range', () => {
  const over = overRanks([curve([0, 1, 2, 3, 4, 5]), curve([9, 9], [], [2.2, 3.2])]);
  assert.deepEqual([...over.high], [0, 1, 9, 9, 4, 5]);
});

test('smoothing of the mean does not depend on the resolution', () => {
  const answerOf = (x: number[], mean: number[], count: number[]): MetricsAnswer => {
    const columns = { name: 'loss', x, mean, low: mean, high: mean, count };
    const curves = [0, 1].map(rank => ({ ...columns, rank }));
    return { state: 'done', names: [], points: 600, curves, over_ranks: [columns], notes: [], exact: true };
  };
  const smoothOf = (answer: MetricsAnswer): number => {
    const [{ smooth }] = linesOf(readAnswer(answer).get('loss')!, { ranks: null, isMean: true, smoothing: 0.8 });
    return smooth![smooth!.length - 1];
  };
  const fine = smoothOf(answerOf([0, 1, 2, 3, 4], [1, 2, 2, 2, 2], [1, 1, 1, 1, 1]));
  assert.ok(Math.abs(fine - smoothOf(answerOf([0, 2.5], [1, 2], [1, 4]))) < CLOSE);
  // On the time axis, ranks have points at different places: each place has half a point per rank.
  const halves = answerOf([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 1, 2, 2, 2, 2, 2, 2, 2, 2], Array<number>(10).fill(0.5));
  assert.ok(Math.abs(fine - smoothOf(halves)) < CLOSE);
});

test('arrow keys move between points, also from a position without one', () => {
  const places = [0, 10, 10, 20];
  const to = (from: number | null, step: 1 | -1): number | undefined => nextPlace(places, from, step);
  assert.deepEqual([to(null, 1), to(0, 1), to(10, 1), to(12.5, 1), to(20, 1), to(99, 1)], [0, 10, 20, 20, 20, 20]);
  assert.deepEqual([to(null, -1), to(20, -1), to(10, -1), to(12.5, -1), to(0, -1), to(-5, -1)], [20, 10, 0, 10, 0, 0]);
  assert.equal(nextPlace([], 3, 1), undefined);
});

test('an answer is read with its gaps and whether finer data exist', () => {
  const answer = answerTo({ axis: 'step', range: null, points: 50, names: [] }, [info('loss')]);
  answer.curves[0].mean = answer.curves[0].mean.map((value, i) => (i === 3 ? null : value));
  answer.curves[0].bad = [{ x: 6.5, value: 'NaN' }];
  const loss = readAnswer(answer).get('loss')!;
  assert.equal(loss.ranks.length, 2);
  assert.ok(Number.isNaN(loss.ranks[0].mean[3]));
  assert.equal(loss.isFinest, false);
  assert.equal(readAnswer(answerTo({ axis: 'step', range: null, points: 100, names: [] }, [info('loss')])).get('loss')!.isFinest, true);
  // Columns of different lengths are cut or replaced.
  const torn = curveOf({ x: [0, 1, 2], mean: [5, 6], low: [1], high: [], count: [7] }, []);
  assert.deepEqual([[...torn.x], [...torn.low], [...torn.high], [...torn.count]], [[0, 1], [5, 6], [5, 6], [1, 1]]);
});

test('lines are a curve for each rank or their mean, with extremes in range', () => {
  const metric = readAnswer(answerTo({ axis: 'step', range: null, points: 100, names: [] }, [info('loss', [0, 1, 2])])).get('loss')!;
  const each = linesOf(metric, { ranks: new Set([0, 2]), isMean: false, smoothing: 0 });
  assert.deepEqual(each.map(({ rank }) => rank), [0, 2]);
  assert.deepEqual(extremes(each, { from: 0, to: 0.5 }, false), [99, 102]);
  const [mean, ...none] = linesOf(metric, { ranks: null, isMean: true, smoothing: 0.5 });
  assert.deepEqual([mean.rank, none.length, mean.curve.mean[0], mean.curve.high[0]], [null, 0, 101, 102]);
  assert.equal(linesOf(metric, { ranks: new Set([1]), isMean: true, smoothing: 0 })[0].rank, 1);
  assert.equal(snap(each, 41.4, nearest), 41);
  assert.equal(snap([], 41.4, nearest), null);
  assert.deepEqual(extremes([], { from: 0, to: 1 }, false), [Infinity, -Infinity]);
});

test('the tooltip lists few ranks, or the mean and extremes of many', () => {
  const of = (count: number): ReturnType<typeof readAnswer> =>
    readAnswer(answerTo({ axis: 'step', range: null, points: 100, names: [] }, [info('loss', Array.from({ length: count }, (_, i) => i))]));
  const few = of(2).get('loss')!;
  const said = (metric: typeof few, isMean: boolean, x = 10): string[] => {
    const lines = linesOf(metric, { ranks: null, isMean, smoothing: 0 });
    return tipRows(lines, metric.ranks, x).map(({ text }) => text);
  };
  assert.deepEqual(said(few, false), ['rank 0: 90', 'rank 1: 91']);
  assert.deepEqual(said(few, true), ['mean of ranks: 90.5', 'lowest: 90 (rank 0)', 'highest: 91 (rank 1)']);
  assert.deepEqual(said(of(20).get('loss')!, false), ['mean of 20 ranks: 99.5', 'lowest: 90 (rank 0)', 'highest: 109 (rank 19)']);
  assert.deepEqual(said(few, false, 500), ['no value here']);
});

test('non-finite values are shown as such, also as the last value', () => {
  const broken = { ...curve([1, null]), bad: [{ x: 1, value: 'Infinity' as const }] };
  assert.deepEqual(lastOf(broken), { x: 1, value: 'Infinity' });
  const line = { rank: 0, curve: broken, smooth: null, hasBand: false };
  assert.equal(lastWords([line]), '∞');
  assert.deepEqual(tipRows([line], [], 1), [{ rank: 0, text: 'rank 0: ∞' }]);
  assert.equal(lastWords([{ ...line, curve: curve([0.5]) }, { ...line, curve: curve([0.25]) }]), '0.25 – 0.5');
  assert.equal(lastWords([]), '');
});

test('the last value is that of the last point, not the mean of the last bucket', () => {
  const answer = answerTo({ axis: 'step', range: null, points: 100, names: [] }, [info('loss', [0, 1])]);
  const [first, second] = answer.curves;
  const lasts = (...values: Array<number | 'NaN'>): string[] => {
    [first.last, second.last] = values;
    const { ranks, over } = readAnswer(answer).get('loss')!;
    const line = { rank: 0, smooth: null, hasBand: false };
    const mean = { ...line, rank: null, curve: over ?? overRanks(ranks) };
    return [lastWords(ranks.map(curve => ({ ...line, curve }))), lastWords([mean])];
  };
  assert.deepEqual(lasts(3, 5), ['3 – 5', 'mean 4']);
  assert.equal(lasts(3, 'NaN')[0], '3, NaN');
});

test('the first metrics are shown, or those that match or were added', () => {
  const names = Array.from({ length: 30 }, (_, i) => info(`m${i}`, i === 5 ? [3] : [0]));
  const shown = (...given: [Set<number> | null, ((name: string) => boolean) | null, Set<string>]): string[] =>
    pick(names, ...given).shown.map(({ name }) => name);
  assert.equal(shown(null, null, new Set()).length, 20);
  assert.deepEqual(shown(null, null, new Set(['m25'])).slice(-2), ['m19', 'm25']);
  assert.deepEqual(shown(new Set([3]), null, new Set()), ['m5']);
  assert.deepEqual(shown(null, name => name.endsWith('9'), new Set()), ['m9', 'm19', 'm29']);
  assert.equal(pick(names, null, null, new Set()).others.length, 10);
});

test('zooming and panning stay within bounds; a full range grows with the run', () => {
  const { window } = new Choice(new Look());
  window.setExtent({ from: 0, to: 100 });
  assert.deepEqual([window.range, window.isFitted], [{ from: -2, to: 102 }, true]);
  window.zoom(50, 0.5);
  assert.deepEqual([window.range, window.isFitted], [{ from: 24, to: 76 }, false]);
  window.setExtent({ from: 0, to: 200 });
  assert.deepEqual(window.range, { from: 24, to: 76 });
  window.pan(1000);
  assert.equal(window.range.to, 204);
  window.zoom(150, 100);
  assert.ok(window.isFitted);
  window.zoomTo({ from: 3, to: 4 });
  assert.deepEqual(window.range, { from: 3, to: 4 });
  window.fit();
  window.setExtent({ from: 7, to: 7 });
  assert.ok(window.range.to > window.range.from);
});

test('the time range of metrics and timeline is shared both ways', () => {
  const look = new Look();
  const choice = new Choice(look);
  choice.axis = 'time';
  look.setExtent({ from: 0, to: 10e6 }, null);
  choice.window.setExtent({ from: 5e6, to: 9e6 });
  assert.ok(choice.window.isFitted);
  assert.equal(choice.window.range.from, 5e6 - 0.08e6);
  choice.window.zoomTo({ from: 6e6, to: 7e6 });
  assert.deepEqual(look.range, { from: 6e6, to: 7e6 });
  look.goTo({ from: 1e6, to: 2e6 });
  assert.deepEqual(choice.window.range, { from: 1e6, to: 2e6 });
  choice.window.fit();
  assert.ok(look.isFitted);
});

test('visible metrics are requested once, and a range only for finer data', async () => {
  const server = new Server([info('loss', [0, 1], 10_000), info('few', [0], 10)]);
  const source = new MetricsSource({ id: 'run', isLive: false, metricEvents: 3, generation: 0 }, server);
  const all: Sought = { axis: 'step', range: null, names: [], points: 600 };
  const look = async (sought: Sought): Promise<void> => {
    source.refresh(sought);
    source.refresh(sought);
    while (!source.isUpToDate(sought)) {
      await answered(source);
      source.refresh(sought);
    }
  };
  await look(all);
  const names = ['loss', 'few'];
  await look({ ...all, names });
  assert.equal(server.asked.length, 1);
  await look({ ...all, names, range: { from: 100, to: 200 } });
  assert.deepEqual(server.asked[1].range, { from: 50, to: 250 });
  assert.equal(source.metric('loss', 'step', { from: 100, to: 200 })!.isFinest, true);
  // Nearby ranges and metrics with few points are known; ranges far away only coarsely.
  await look({ ...all, names, range: { from: 140, to: 240 } });
  await look({ ...all, names: ['few'], range: { from: 3, to: 4 } });
  assert.equal(server.asked.length, 2);
  assert.equal(source.metric('loss', 'step', { from: 5000, to: 5100 })!.isFinest, false);
  await look({ ...all, axis: 'time', names });
  assert.equal(server.asked.length, 3);
  await look({ ...all, names });
  assert.equal(server.asked.length, 3);
  source.dispose();
});

test('with very many ranks, metrics are requested one at a time', async () => {
  const ranks = Array.from({ length: 1_300 }, (_, rank) => rank);
  const names = ['loss', 'acc', 'rate'];
  const server = new Server(names.map(name => info(name, ranks, 60)));
  const source = new MetricsSource({ id: 'run', isLive: false, metricEvents: 3, generation: 0 }, server);
  const look = async (sought: Sought): Promise<string[]> => {
    const begin = server.asked.length;
    for (source.refresh(sought); !source.isUpToDate(sought) && server.asked.length < 20; source.refresh(sought)) {
      await answered(source);
    }
    return server.asked.slice(begin).map(question => question.names.join());
  };
  const all: Sought = { axis: 'step', range: null, names, points: 20 };
  assert.deepEqual(await look(all), [''], 'which there are is not known yet');
  assert.deepEqual(await look({ ...all, axis: 'time' }), names);
  assert.deepEqual(await look({ ...all, range: { from: 10, to: 15 } }), names);
  assert.ok(names.every(name => source.metric(name, 'step', { from: 10, to: 15 })!.isFinest));
  source.dispose();
});

test('a wider view requests curves with more points', async () => {
  const server = new Server([info('loss', [0, 1], 10_000)]);
  const source = new MetricsSource({ id: 'run', isLive: false, metricEvents: 3, generation: 0 }, server);
  const look = async (points: number, range: Sought['range']): Promise<number> => {
    const sought: Sought = { axis: 'step', range, names: ['loss'], points };
    for (source.refresh(sought); !source.isUpToDate(sought); source.refresh(sought)) {
      await answered(source);
    }
    return source.metric('loss', 'step', range)!.ranks[0].x.length;
  };
  assert.ok((await look(400, null)) <= 400);
  assert.ok((await look(1_000, null)) > 400);
  const part = { from: 1_000, to: 6_000 };
  const coarse = await look(400, part);
  assert.ok((await look(800, part)) > 1.5 * coarse);
  const asked = server.asked.length;
  await look(400, part);
  await look(600, null);
  assert.equal(server.asked.length, asked);
  source.dispose();
  // If the server limits the number of points, the request is not repeated.
  const limited = new Server([info('loss', [0], 10_000)], 300);
  const other = new MetricsSource({ id: 'run', isLive: false, metricEvents: 3, generation: 0 }, limited);
  const sought: Sought = { axis: 'step', range: null, names: ['loss'], points: 600 };
  for (other.refresh(sought); !other.isUpToDate(sought) && limited.asked.length < 5; other.refresh(sought)) {
    await answered(other);
  }
  assert.equal(limited.asked.length, 1);
  other.dispose();
});

test('a live run’s new metrics are requested after a pause; failures are reported', async () => {
  const model = { id: 'run', isLive: true, metricEvents: 1, generation: 0 };
  const server = new Server([info('loss', [0], 10)]);
  const source = new MetricsSource(model, server);
  const sought: Sought = { axis: 'step', range: null, names: ['loss'], points: 600 };
  source.refresh(sought);
  await answered(source);
  source.refresh(sought);
  assert.ok(source.isUpToDate(sought));
  model.metricEvents = 2;
  const begin = performance.now();
  source.refresh(sought);
  await answered(source);
  assert.equal(server.asked.length, 1);
  // A timer may fire a fraction of a millisecond early; it is then set again.
  for (let i = 0; i < 5 && server.asked.length < 2; i++) {
    source.refresh(sought);
    await answered(source);
  }
  assert.equal(server.asked.length, 2);
  assert.ok(performance.now() - begin > 900);
  model.isLive = false;
  server.failure = 'no answer';
  for (let i = 0; i < 5 && source.trouble === ''; i++) {
    source.refresh(sought);
    await answered(source);
  }
  assert.equal(source.trouble, 'no answer');
  assert.ok(source.metric('loss', 'step', null), 'what is known stays');
  source.refresh(sought);
  source.dispose();
});

test('the last value of a zoomed metric is that of the whole run', async () => {
  const model = { id: 'run', isLive: true, metricEvents: 1, generation: 0 };
  const known = [info('loss', [0], 10_000)];
  const source = new MetricsSource(model, new Server(known));
  const sought: Sought = { axis: 'step', range: { from: 100, to: 200 }, names: ['loss'], points: 600 };
  const last = async (): Promise<number> => {
    for (source.refresh(sought); !source.isUpToDate(sought); source.refresh(sought)) {
      await answered(source);
    }
    const [{ x }] = source.metric('loss', 'step', null)!.ranks;
    return x[x.length - 1];
  };
  assert.ok((await last()) > 9_900);
  known[0] = info('loss', [0], 20_000);
  model.metricEvents = 2;
  model.isLive = false;
  assert.ok((await last()) > 19_900);
  source.dispose();
});

test('metrics of a lost run that came back are outdated', async () => {
  const model = { id: 'run', isLive: false, metricEvents: 1, generation: 0 };
  const source = new MetricsSource(model, new Server([info('loss', [0], 10)]));
  const sought: Sought = { axis: 'step', range: null, names: ['loss'], points: 600 };
  source.refresh(sought);
  await answered(source);
  assert.equal(source.isUpToDate(sought), true);
  model.generation = 1;
  assert.equal(source.isUpToDate(sought), false);
  source.dispose();
});

test('CSV contains every point although the server answers with buckets', async () => {
  const server = new Server([info('=loss', [0, 1], 1_000)], 100);
  const text = await metricsCsv(server, ['run', 'other'], 'step', ['=loss', 'gone']);
  const lines = text.trim().split('\n');
  assert.equal(lines[0], 'name,rank,step,value,lowest,highest,points,run');
  assert.equal(lines.length, 4_001);
  assert.equal(new Set(lines).size, 4_001);
  assert.ok(lines.includes("'=loss,1,500,-399,,,1,run"));
  assert.ok(lines.includes("'=loss,1,500,-399,,,1,other"));
  // Points with the same step cannot be separated, which ends the requests.
  const same = new Server([{ ...info('same', [0], 1_000), steps: [5, 5] }], 100);
  assert.ok((await metricsCsv(same, ['run'], 'step', ['same'])).split('\n').length > 100);
});

test('CSV contains every point if the first answer is a coarse copy', async () => {
  const names = [info('loss', [0, 1], 300)];
  const coarse = new Server(names, 150);
  const fine = new Server(names);
  const server = {
    metrics: async (id: string, question: Question): Promise<MetricsAnswer> =>
      question.range ? fine.metrics(id, question) : { ...(await coarse.metrics(id, question)), points: 4_000, exact: false }
  };
  const lines = (await metricsCsv(server, ['run'], 'step', ['loss'])).trim().split('\n');
  assert.equal(lines.length, 601);
  assert.ok(lines.slice(1).every(line => line.endsWith(',,,1,run')));
});

test('CSV contains non-finite values, also those that share a bucket', async () => {
  const all = Array.from({ length: 100 }, (_, i) => (i % 2 ? NaN : i));
  const server = {
    metrics: async (_id: string, { range }: Question): Promise<MetricsAnswer> => {
      await Promise.resolve();
      const seen = all.map((_, i) => i).filter(i => !range || (i >= range.from && i <= range.to));
      const size = seen.length > 60 ? 2 : 1;
      const x = seen.filter((_, k) => k % size === 0);
      const mean = x.map(i => (i % 2 ? null : i));
      const bad = seen.filter(i => i % 2).map(i => ({ x: i, value: 'NaN' as const }));
      const curves = [{ name: 'loss', rank: 0, x, mean, low: mean, high: mean, count: x.map(() => size), bad }];
      return { state: 'done', names: [info('loss', [0])], points: 60, curves, over_ranks: [], notes: [], exact: true };
    }
  };
  const lines = (await metricsCsv(server, ['run'], 'step', ['loss'])).trim().split('\n');
  assert.equal(lines.length, 101);
  assert.ok(lines.includes('loss,0,41,NaN,,,1,run') && lines.includes('loss,0,42,42,,,1,run'));
});

test('CSV contains each of very many points exactly once', async () => {
  const places = Array.from({ length: 150_000 }, (_, i) => i / 2 - 3);
  const most = 100_000;
  const server = {
    metrics: async (_id: string, { range }: Question): Promise<MetricsAnswer> => {
      await Promise.resolve();
      const seen = places.filter(x => !range || (x >= range.from && x <= range.to));
      const size = seen.length > most ? 2 : 1;
      const x = seen.filter((_, k) => k % size === 0);
      const curves = [{ name: 'loss', rank: 0, x, mean: x, low: x, high: x, count: x.map((_, k) => Math.min(size, seen.length - k * size)) }];
      const about = { ...info('loss', [0], places.length), steps: [places[0], places[places.length - 1]] as [number, number] };
      return { state: 'done', names: [about], points: most, curves, over_ranks: [], notes: [], exact: true };
    }
  };
  const lines = (await metricsCsv(server, ['run'], 'step', ['loss'])).trim().split('\n');
  assert.equal(lines.length, places.length + 1);
  assert.equal(new Set(lines).size, lines.length);
});

test('a model counts metrics events without reading their points', () => {
  const rank = { rank: 0, host: 'here', pid: 1, device: 'cpu' };
  const model = new RunModel({ version: 1, id: 'run', state: 'running', start: 0, cluster: 'local', size: 1, ranks: [rank] });
  const event = { kind: 'metrics', rank: 0, seq: 0, t: 1, from: 0, define: ['loss'], name: [0], step: [0], at: [1], value: ['NaN'] };
  const whole = JSON.stringify(event);
  const { kind, ...others } = event;
  const reordered = JSON.stringify({ ...others, kind });
  [...model.take(`${whole}\n${reordered}\n${whole.slice(0, -2)}\n`)];
  assert.deepEqual([model.metricEvents, model.damaged], [2, 1]);
  model.forget();
  assert.equal(model.metricEvents, 0);
});
