/** What is made of the server's answers, before anything is known of what they are about. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import type { ServerConnection } from '@jupyterlab/services';

import { Api } from '../src/api';
import { ClustersApi } from '../src/api/clusters';

function apiOf(answer: () => Response): Api {
  const settings = { baseUrl: 'http://here/', init: {}, token: '', appendToken: false, Request, fetch: () => Promise.resolve(answer()) };
  return new Api(settings as unknown as ServerConnection.ISettings);
}

test('who is not logged in any more is told so, and what a route says is told in its words', async () => {
  const ask = (status: number, message: string): Promise<unknown> =>
    apiOf(() => new Response(JSON.stringify({ message }), { status })).isThere();
  await assert.rejects(ask(403, 'Forbidden'), /^Error: log in to the Jupyter server again/);
  await assert.rejects(ask(401, 'x'), /log in to the Jupyter server again/);
  await assert.rejects(ask(403, 'cluster one belongs to another user'), /belongs to another user/);
});

test('a page in place of an answer is that of a login', async () => {
  const clusters = new ClustersApi(apiOf(() => new Response('<!DOCTYPE html>', { status: 200 })));
  await assert.rejects(clusters.clusters(), /log in to the Jupyter server again/);
});

test('the clock is not set back by an answer that waited for what is to come', async t => {
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
