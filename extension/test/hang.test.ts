/** Why a run is stuck, and what is done about it. */
import { strict as assert } from 'node:assert';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { ApiError, type Api } from '../src/api';
import { alikeStacks, awaited } from '../src/run/hang';
import { Ladder } from '../src/run/ladder';
import { RunModel } from '../src/run/model';
import { ownLine } from '../src/run/ownline';
import type { Hang, Place, Run } from '../src/schema';

const golden = JSON.parse(
  readFileSync(join(__dirname, '../../../tests/support/records/hang/run.json'), 'utf8')
) as Run;

function hang(...states: Place['state'][]): Hang {
  return { since: 0, text: 'x', places: states.map((state, rank) => ({ ranks: [rank], state, words: state })) };
}

test('the ranks to restart are those that others wait for', () => {
  assert.deepEqual(awaited(golden.hang!), [2]);
  assert.deepEqual(awaited(hang('waits', 'busy', 'ended', 'silent')), [1, 3]);
  assert.deepEqual(awaited(hang('ended', 'still')), [1]);
  assert.deepEqual(awaited(hang('waits', 'waits')), []);
  assert.deepEqual(awaited(hang('still', 'busy')), []);
  assert.deepEqual(awaited({ since: 0, text: 'of an older cluster' }), []);
});

test('a hang is shown only while the run is live', () => {
  assert.equal(new RunModel(golden).hang, golden.hang);
  assert.equal(new RunModel({ ...golden, state: 'lost' }).hang, null);
  assert.equal(new RunModel({ ...golden, hang: undefined }).hang, null);
});

test('identical stacks are grouped', () => {
  const stacks = new Map([[2, 'a'], [0, 'b'], [1, 'a']]);
  assert.deepEqual(alikeStacks(stacks), [[[0], 'b'], [[1, 2], 'a']]);
});

/** Routes whose answers a test gives; `calls` lists the requests. */
function routes(): { api: Api; calls: string[]; answer: Array<(text: string) => void>; refuse: Array<(error: Error) => void> } {
  const calls: string[] = [];
  const answer: Array<(text: string) => void> = [];
  const refuse: Array<(error: Error) => void> = [];
  const api = {
    take: (id: string, step: string, ranks: number[]) => {
      calls.push([id, step, ...ranks].join(' '));
      return new Promise<string>((done, failed) => {
        answer.push(done);
        refuse.push(failed);
      });
    },
    stacks: () => Promise.resolve(new Map([[0, 'main']]))
  };
  return { api: api as unknown as Api, calls, answer, refuse };
}

test('a remedy runs once at a time, and reports its result or error', async () => {
  const { api, calls, answer, refuse } = routes();
  const ladder = new Ladder(new RunModel(golden), api);
  const first = ladder.take('release');
  await ladder.take('release');
  assert.deepEqual([calls, ladder.isUnderWay('release'), ladder.isUnderWay('interrupt')], [['hang release'], true, false]);
  assert.match(ladder.said, /releasing/);
  answer[0]('released torch');
  await first;
  assert.deepEqual([ladder.said, ladder.isTrouble, ladder.isUnderWay('release')], ['released torch', false, false]);
  const second = ladder.take('restart', [2]);
  assert.deepEqual([ladder.isUnderWay('restart', [2]), ladder.isUnderWay('restart', [1])], [true, false]);
  refuse[1](new ApiError('cluster local is gone', 410));
  await second;
  assert.deepEqual([ladder.said, ladder.isTrouble], ['cluster local is gone', true]);
  assert.deepEqual(calls, ['hang release', 'hang restart 2']);
});

test('the next steps are offered when a run outlives its interrupt', async () => {
  const { api, answer } = routes();
  const model = new RunModel({ ...golden, hang: null });
  let now = 0;
  const ladder = new Ladder(model, api, () => now);
  const step = ladder.take('interrupt');
  now = 60_000;
  assert.equal(ladder.isOutlived, false);
  answer[0]('interrupted');
  await step;
  assert.equal(ladder.isOutlived, false);
  now += 2_500;
  assert.equal(ladder.isOutlived, true);
  model.run = { ...golden, state: 'interrupted' };
  assert.equal(ladder.isOutlived, false);
});

test('stacks are seen until they are hidden', async () => {
  const ladder = new Ladder(new RunModel(golden), routes().api);
  await ladder.look();
  assert.deepEqual([ladder.stacks?.get(0), ladder.said], ['main', '']);
  ladder.hideStacks();
  assert.equal(ladder.stacks, null);
});

test('a traceback’s line in the cell is distinguished from library lines', () => {
  const lines = [
    'ValueError                      Traceback (most recent call last)',
    '\u001b[36mCell\u001b[39m\u001b[36m \u001b[39m\u001b[32mIn[3], line 5\u001b[39m',
    '\u001b[32m      4\u001b[39m x = 1',
    '\u001b[32m----> \u001b[39m\u001b[32m5\u001b[39m train(x)',
    'Cell In[3], line 12, in train(x)',
    '---> 12 model(x)',
    'File ~/lib/torch/module.py:12, in forward(self)',
    '---> 12 raise ValueError'
  ];
  assert.equal(ownLine(lines, 12), 5);
  assert.equal(ownLine(lines, 5), 3);
  assert.equal(ownLine(lines, 7), -1);
  assert.equal(ownLine(lines, null), -1);
});

test('the released collective is taken from the error or the last status event', () => {
  const model = new RunModel(golden);
  const error = { seq: 0, t: 1, ename: 'E', evalue: 'x', traceback: [] };
  const event = (fields: object): string => `${JSON.stringify({ ...error, ...fields })}\n`;
  [...model.take(
    event({ kind: 'error', rank: 0, released: 'allreduce grad.3' }) +
      event({ kind: 'error', rank: 1 }) +
      event({ kind: 'error', rank: 2 }) +
      event({ kind: 'status', rank: 1, state: 'released', note: 'released from allreduce of x' }) +
      event({ kind: 'status', rank: 2, state: 'error', note: 'something else' })
  )];
  assert.deepEqual(model.errors.map(each => model.releaseOf(each)), [
    'released from allreduce grad.3',
    'released from allreduce of x',
    null
  ]);
  model.forget();
  assert.equal(model.releaseOf({ ...error, kind: 'error', rank: 1 }), null);
});
