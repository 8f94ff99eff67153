/** Comparison with other runs: what is requested, drawn and displayed of them. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { readAnswer, type Metric, type MetricsAnswer } from '../src/metrics/answer';
import { Choice } from '../src/metrics/choice';
import { Comparison, runWords, type RunsServer } from '../src/metrics/comparison';
import { extremes, linesOf, linesOfOthers } from '../src/metrics/lines';
import { lastOfOthers, otherRows } from '../src/metrics/phrases';
import type { Question, Sought } from '../src/metrics/source';
import type { Run, RunState } from '../src/schema';
import { Look } from '../src/timeline/look';

const SOUGHT: Sought = { axis: 'step', range: null, names: ['loss'], points: 600 };

/** Return an answer for a metric: a curve per rank, with these values at 0, 1, 2, … */
function answerOf(name: string, ranks: number[][], state: RunState = 'done'): MetricsAnswer {
  const steps = ranks[0].map((_, i) => i);
  const curves = ranks.map((values, rank) => ({ name, rank, x: steps, mean: values, low: values, high: values, count: values.map(() => 1) }));
  const at = (pick: (values: number[]) => number): number[] => steps.map(i => pick(ranks.map(values => values[i])));
  const over = {
    name, x: steps, low: at(values => Math.min(...values)), high: at(values => Math.max(...values)),
    mean: at(values => values.reduce((sum, value) => sum + value, 0) / values.length), count: steps.map(() => 1)
  };
  const info = { name, ranks: ranks.map((_, i) => i), points: steps.length, steps: [0, steps.length - 1] as [number, number], t: [0, 9e6] as [number, number] };
  return { state, names: [info], points: 600, curves, over_ranks: ranks.length > 1 ? [over] : [], notes: [], exact: true };
}

function metricOf(...ranks: number[][]): Metric {
  return readAnswer(answerOf('loss', ranks)).get('loss')!;
}

class Server implements RunsServer {
  asked: Array<[string, Question]> = [];

  constructor(public runs: { [id: string]: MetricsAnswer }) {}

  async run(id: string): Promise<Run> {
    await Promise.resolve();
    if (!(id in this.runs)) {
      throw Object.assign(new Error('404'), { status: 404 });
    }
    return { version: 1, id, state: 'done', start: 0, cluster: 'local', size: 2, ranks: [], name: `named ${id}` };
  }

  async comparable(): Promise<Run[]> {
    return Promise.all(Object.keys(this.runs).map(id => this.run(id)));
  }

  async metrics(id: string, question: Question): Promise<MetricsAnswer> {
    this.asked.push([id, question]);
    await Promise.resolve();
    return this.runs[id];
  }
}

/** Refresh until everything in SOUGHT is known. */
async function settled(comparison: Comparison): Promise<void> {
  for (let i = 0; i < 50; i++) {
    comparison.refresh(SOUGHT);
    await new Promise(resolve => setImmediate(resolve));
  }
  assert.ok(comparison.isReady(SOUGHT));
}

test('metrics are requested of each compared run; missing ones are noted', async () => {
  const server = new Server({
    same: answerOf('loss', [[3, 2, 1]]),
    else: answerOf('acc', [[0, 1]]),
    none: { ...answerOf('loss', [[]]), names: [], curves: [] }
  });
  const comparison = new Comparison(server);
  comparison.set(['same', 'else', 'gone', 'none', 'one too many']);
  await settled(comparison);
  assert.deepEqual(comparison.others.map(({ id }) => id), ['same', 'else', 'gone', 'none']);
  assert.deepEqual(new Set(server.asked.map(([id]) => id)), new Set(['same', 'else', 'none']));
  assert.deepEqual(comparison.notes(new Set(['loss', 'lr'])), [
    'B, run else, shares no metric with this run; its metrics include acc',
    'not compared with C, run gone: its record was not found',
    'D, run none, has no metrics'
  ]);
  assert.deepEqual(comparison.infos(new Set(['loss'])).map(({ steps }) => steps), [[0, 2]]);
  assert.deepEqual([...comparison.others[0].metric('loss', 'step', null)!.ranks[0].mean], [3, 2, 1]);

  const kept = comparison.others[1];
  const asked = server.asked.length;
  comparison.set(['else']);
  await settled(comparison);
  assert.equal(comparison.others[0], kept);
  assert.equal(server.asked.length, asked);
  comparison.dispose();
});

test('a compared live run is polled until it ends', async () => {
  const server = new Server({ live: answerOf('loss', [[1]], 'running') });
  const comparison = new Comparison(server);
  comparison.set(['live']);
  await settled(comparison);
  assert.ok(comparison.others[0].isLive);
  server.runs.live = answerOf('loss', [[1, 2]]);
  const begin = performance.now();
  while (comparison.others[0].isLive && performance.now() - begin < 5_000) {
    comparison.refresh(SOUGHT);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
  assert.ok(performance.now() - begin > 900, 'it rests between two questions');
  assert.equal(comparison.infos(new Set(['loss']))[0].points, 2);
  comparison.dispose();
});

test('each compared run is one line, the mean of its ranks', () => {
  const others = linesOfOthers([metricOf([4, 2], [6, 4]), null, metricOf([9, 9])], 0);
  assert.deepEqual(others.map(({ rank, other, hasBand }) => [rank, other, hasBand]), [[null, 0, true], [null, 2, false]]);
  assert.deepEqual([...others[0].curve.mean], [5, 3]);
  assert.deepEqual(extremes(others, { from: 0, to: 1 }, false), [2, 9]);
  assert.deepEqual(lastOfOthers(others), ['A 3', 'C 9']);
});

test('the tooltip shows each compared run’s value and the difference to it', () => {
  const mine = metricOf([1, 2], [3, 2]);
  const others = linesOfOthers([metricOf([1.5, 4, 8]), metricOf([2, 2])], 0);
  const said = (x: number, isMean: boolean): string[] =>
    otherRows(linesOf(mine, { ranks: null, isMean, smoothing: 0 }), others, x).map(({ text }) => text);
  for (const isMean of [true, false]) {
    assert.deepEqual(said(0, isMean), ['A: 1.5 (this run +0.5)', 'B: 2 (this run 0)']);
    assert.deepEqual(said(1, isMean), ['A: 4 (this run −2)', 'B: 2 (this run 0)']);
  }
  assert.deepEqual(said(2, true), ['A: 8', 'B: no value here']);
});

test('the time range of a comparison is not shared with the timeline', () => {
  const look = new Look();
  const choice = new Choice(look);
  choice.axis = 'time';
  look.setExtent({ from: 0, to: 10e6 }, null);
  choice.isComparing = true;
  choice.window.setExtent({ from: 0, to: 50e6 });
  choice.window.zoomTo({ from: 30e6, to: 40e6 });
  assert.deepEqual(choice.window.range, { from: 30e6, to: 40e6 });
  assert.ok(look.isFitted);
  choice.isComparing = false;
  choice.window.setExtent({ from: 0, to: 10e6 });
  assert.equal(choice.window.range.to, 10.2e6);
});

test('a run is described by its name, time, ranks and whether it is live', () => {
  const run: Run = { version: 1, id: 'r', state: 'running', start: 0, cluster: 'local', size: 2, ranks: [], title: 'fit()' };
  assert.match(runWords(run), /^fit\(\) · .* · 2 ranks · still running$/);
  assert.match(runWords({ ...run, name: 'x'.repeat(99) }), /^x{39}… · /);
  assert.match(runWords({ ...run, name: 'baseline' }, false), /^baseline · .* · 2 ranks$/);
});
