/** Handling of any answer of the server: logins, timeouts, truncation, the server's clock. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import type { ServerConnection } from '@jupyterlab/services';

import { Api } from '../src/api';
import { ClustersApi } from '../src/api/clusters';
import { WorkshopApi } from '../src/api/workshop';

function apiOf(answer: () => Response): Api {
  const settings = { baseUrl: 'http://here/', init: {}, token: '', appendToken: false, Request, fetch: () => Promise.resolve(answer()) };
  return new Api(settings as unknown as ServerConnection.ISettings);
}

test('an expired login is reported; other refusals keep the server’s message', async () => {
  const ask = (status: number, message: string): Promise<unknown> =>
    apiOf(() => new Response(JSON.stringify({ message }), { status })).isThere();
  await assert.rejects(ask(403, 'Forbidden'), /^Error: log in to the Jupyter server again/);
  await assert.rejects(ask(401, 'x'), /log in to the Jupyter server again/);
  await assert.rejects(ask(403, 'cluster one belongs to another user'), /belongs to another user/);
});

test('an HTML page instead of clusters means that the login has expired', async () => {
  const clusters = new ClustersApi(apiOf(() => new Response('<!DOCTYPE html>', { status: 200 })));
  await assert.rejects(clusters.clusters(), /log in to the Jupyter server again/);
});

test('an HTML page instead of a run or a seat means that the login has expired', async () => {
  const page = (): Response => new Response('<!DOCTYPE html>', { headers: { 'Content-Type': 'text/html; charset=UTF-8' } });
  const api = apiOf(page);
  for (const asked of [api.run('1'), api.take('1', 'interrupt'), api.events('1', 0, 0, '', 1), new WorkshopApi(api).own()]) {
    await assert.rejects(asked, /log in to the Jupyter server again/);
  }
});

test('unanswered requests time out, and those that carry out an action only when the server gave up, too', async t => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const asked: AbortSignal[] = [];
  const fetch = (request: Request): Promise<Response> =>
    new Promise((_, reject) => {
      asked.push(request.signal);
      request.signal.addEventListener('abort', () => reject(new Error('aborted')));
    });
  const settings = { baseUrl: 'http://here/', init: {}, token: '', appendToken: false, Request, fetch };
  const api = new Api(settings as unknown as ServerConnection.ISettings);
  const ends = assert.rejects(api.run('1'), /the Jupyter server does not respond/);
  const waits = assert.rejects(api.events('1', 0, 50, '', 1), /the Jupyter server does not respond/);
  const acts = assert.rejects(api.take('1', 'restart'), /does not respond; it may have done what you asked for/);
  await Promise.resolve();
  t.mock.timers.tick(61_000);
  await ends;
  assert.equal(asked[1].aborted, false);
  t.mock.timers.tick(20_000);
  await waits;
  t.mock.timers.tick(30_000);
  assert.equal(asked[2].aborted, false);
  t.mock.timers.tick(10_000);
  await acts;
});

test('a stalled answer is cut off, but a slow one is not', async t => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let writer: ReadableStreamDefaultController<Uint8Array> | undefined;
  const fetch = (request: Request): Promise<Response> => {
    const body = new ReadableStream<Uint8Array>({ start: stream => void (writer = stream) });
    request.signal.addEventListener('abort', () => writer?.error(new Error('aborted')));
    return Promise.resolve(new Response(body));
  };
  const settings = { baseUrl: 'http://here/', init: {}, token: '', appendToken: false, Request, fetch };
  const api = new Api(settings as unknown as ServerConnection.ISettings);
  const turns = async (): Promise<void> => {
    for (let i = 0; i < 50; i++) {
      await new Promise(resolve => setImmediate(resolve));
    }
  };
  const ends = assert.rejects(api.run('1'), /was cut off/);
  for (const part of ['{"id"', ': "1', '0"']) {
    await turns();
    t.mock.timers.tick(40_000);
    writer?.enqueue(new TextEncoder().encode(part));
  }
  await turns();
  t.mock.timers.tick(61_000);
  await ends;
  const whole = api.run('1');
  await turns();
  t.mock.timers.tick(40_000);
  writer?.enqueue(new TextEncoder().encode('{}'));
  await turns();
  t.mock.timers.tick(40_000);
  writer?.close();
  await whole.catch(error => assert.doesNotMatch(String(error), /was cut off|does not respond/));
});

test('an API below a path asks for the version at the root', async () => {
  const asked: string[] = [];
  const fetch = (request: Request): Promise<Response> => (asked.push(request.url), Promise.resolve(new Response('{}')));
  const settings = { baseUrl: 'http://here/', init: {}, token: '', appendToken: false, Request, fetch };
  assert.ok(await new Api(settings as unknown as ServerConnection.ISettings).at('workshop').isThere());
  assert.deepEqual(asked, ['http://here/rankroom/version']);
});

test('the server’s clock is not taken from long-polled answers', async t => {
  let now = 1_800_000_000_300;
  t.mock.method(Date, 'now', () => now);
  const asked = async (ahead: number, wait: number): Promise<number> => {
    const date = new Date(now + ahead).toUTCString();
    answer = () => ((now += wait), new Response('{}', { headers: { Date: date } }));
    await api.isThere();
    return api.now - now;
  };
  let answer = (): Response => new Response();
  const api = apiOf(() => answer());
  assert.equal(await asked(0, 10), 0);
  assert.equal(await asked(0, 25_000), 0);
  const ahead = await asked(10_000, 10);
  assert.ok(9_000 < ahead && ahead <= 10_000, `${ahead}`);
  assert.equal(await asked(10_000, 25_000), ahead);
});
