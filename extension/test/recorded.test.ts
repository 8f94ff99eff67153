/** A record in a page of its own: its answers to the view's requests. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';

import type { MetricsAnswer } from '../src/metrics/answer';
import { Recorded } from '../src/page/recorded';

const EVENTS = '{"a":1}\n{"bb":2}\n{"ccc":"ü"}\n';
const PARTS: { [name: string]: string } = {
  '': '{"id":"r","state":"failed","compare":["with","gone"]}',
  events: EVENTS,
  log: '0 │ one\n1 │ two\n11 │ three\n1 ┆ four\n',
  overview: '',
  run_1: '{"id":"with","state":"done"}',
  metrics_step_1: JSON.stringify({ names: [], notes: [], points: 600, state: 'done', exact: true, curves: [], over_ranks: [] }),
  metrics_time: JSON.stringify({
    names: [], notes: [], points: 600, state: 'done', exact: true,
    curves: ['loss', 'lr'].map(name => ({
      name, rank: 0, x: [0, 10, 20], mean: [1, null, 3], low: [1, null, 3], high: [1, null, 3], count: [1, 0, 1], bad: [{ x: 10, value: 'NaN' }]
    })),
    over_ranks: [{ name: 'lr', x: [0, 20], mean: [1, 2], low: [0, 1], high: [2, 3], count: [1, 5] }]
  })
};

const recorded = new Recorded(name => (name in PARTS ? gzipSync(PARTS[name]).toString('base64') : ''));

async function ask(path: string): Promise<{ answer: Response; text: string }> {
  const answer = await recorded.answer(`/rankroom/runs/r${path}`);
  return { answer, text: await answer.text() };
}

test('a page answers with its run, overview and log, and refuses actions', async () => {
  assert.equal((await ask('')).text, PARTS['']);
  assert.equal((await ask('/overview')).text, '');
  assert.equal((await ask('/log')).text, PARTS.log);
  const refused = await ask('/interrupt');
  assert.equal(refused.answer.status, 404);
  assert.match(refused.text, /there are no live ranks/);
});

test('a page answers for the compared runs that it contains', async () => {
  const of = async (path: string): Promise<[number, string]> => {
    const answer = await recorded.answer(`/rankroom/runs${path}`);
    return [answer.status, await answer.text()];
  };
  assert.deepEqual(await of('?limit=200&metrics=1'), [200, `{"runs":[${PARTS.run_1}]}`]);
  assert.deepEqual(await of('/with'), [200, PARTS.run_1]);
  assert.deepEqual(await of('/with/metrics?axis=step'), [200, PARTS.metrics_step_1]);
  assert.deepEqual(await of('/gone'), [404, '{"message":"the run is not in this page"}']);
  assert.equal((await of('/with/log'))[0], 404);
});

test('events are returned in whole lines from an offset', async () => {
  const size = Buffer.byteLength(EVENTS);
  const of = async (query: string): Promise<[string, number]> => {
    const { answer, text } = await ask(`/events?${query}`);
    assert.equal(answer.headers.get('X-Rankroom-State'), 'failed');
    assert.equal(Number(answer.headers.get('X-Rankroom-Size')), size);
    return [text, Number(answer.headers.get('X-Rankroom-Next'))];
  };
  assert.deepEqual(await of('after=0&limit=1000'), [EVENTS, size]);
  assert.deepEqual(await of('after=0&limit=10'), ['{"a":1}\n', 8]);
  // A line that is longer than the limit is given whole.
  assert.deepEqual(await of('after=0&limit=2'), ['{"a":1}\n', 8]);
  assert.deepEqual(await of(`after=8&limit=1000`), [EVENTS.slice(8), size]);
  assert.deepEqual(await of(`after=${size}&limit=10`), ['', size]);
});

test('the log can be limited to some ranks', async () => {
  assert.equal((await ask('/log?rank=1')).text, '1 │ two\n1 ┆ four\n');
  assert.equal((await ask('/log?rank=0,11')).text, '0 │ one\n11 │ three\n');
});

test('metrics can be limited to names and a range', async () => {
  const of = async (query: string): Promise<MetricsAnswer> => JSON.parse((await ask(`/metrics?axis=time${query}`)).text) as MetricsAnswer;
  const all = await of('');
  assert.deepEqual([all.curves.length, all.over_ranks.length, all.curves[0].x], [2, 1, [0, 10, 20]]);
  const part = await of('&name=lr&from=5&to=30&points=2');
  assert.deepEqual(part.curves.map(({ name, x, mean, count, bad }) => [name, x, mean, count, bad?.length]), [['lr', [10, 20], [null, 3], [0, 1], 1]]);
  assert.deepEqual(part.over_ranks.map(({ x, high, count }) => [x, high, count]), [[[20], [3], [5]]]);
});
