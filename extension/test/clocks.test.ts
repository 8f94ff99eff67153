/** Ranks of several nodes: lines, failures and the timeline on one clock. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { RunModel } from '../src/run/model';
import type { Run } from '../src/schema';

const AHEAD = 2_000_000;
const run: Run = {
  version: 1, id: 'r', state: 'failed', start: 1, end: 9_000_000, cluster: 'local', size: 2,
  ranks: [
    { rank: 0, host: 'a', pid: 1, device: 'cpu' },
    { rank: 1, host: 'b', pid: 1, device: 'cpu', clock: { offset: AHEAD, error: 50 } }
  ]
};

function written(...events: object[]): RunModel {
  const model = new RunModel(run);
  [...model.take(events.map((event, seq) => `${JSON.stringify({ seq, ...event })}\n`).join(''))];
  return model;
}

function log(rank: number, t: number): object {
  return { kind: 'log', rank, t, stream: 'stdout', text: `rank ${rank}\n` };
}

test('the nearest log line is found on the timeline’s clock', () => {
  const model = written(log(0, 3_000_000), log(1, 3_100_000 + AHEAD), log(1, 3_000_000));
  const { lines } = model.log;
  const nearest = (t: number, rank: number | null): string => {
    const line = lines.nearest(t, rank, each => model.spans.offset(each));
    return `${lines.rank(line)} ${lines.time(line)}`;
  };
  assert.equal(nearest(3_100_000, null), `1 ${3_100_000 + AHEAD}`);
  assert.equal(nearest(3_000_000, 0), '0 3000000');
  assert.equal(nearest(1_000_000, 1), '1 3000000');
});

test('the loss of a rank is timed by the clock of the process that reports it', () => {
  const model = written({ kind: 'status', rank: 1, t: 5_000_000, state: 'lost', note: 'was killed' });
  const { lines } = model.log;
  assert.equal(lines.time(0) - model.spans.offset(1), 5_000_000);
});

test('no error of another rank is the cause if a rank was killed', () => {
  const error = (rank: number): object =>
    ({ kind: 'error', rank, t: 5, ename: 'HorovodInternalError', evalue: 'closed', traceback: [] });
  const model = written(error(0), error(1));
  assert.equal(model.failures.first?.rank, 0);
  model.run = { ...run, failure: { rank: 3, ename: 'RankLost', evalue: 'rank 3 was killed' } };
  assert.deepEqual([model.failures.first, model.failures.others.length], [null, 2]);
  model.run = { ...run, failure: { rank: 1, ename: 'HorovodInternalError', evalue: 'closed' } };
  assert.equal(model.failures.first?.rank, 1);
});
