/** What the sidebar requests from the server, and when. */
import { strict as assert } from 'node:assert';
import { test, type TestContext } from 'node:test';

import type { Poll } from '@lumino/polling';

import { ApiError } from '../src/api';
import type { ClustersApi } from '../src/api/clusters';
import type { ClusterStatus, Question } from '../src/cluster_status';
import { Clusters } from '../src/sidebar/clusters';
import { whenPossibleChanges } from '../src/sidebar/possible';

const CARD = { name: 'one', state: 'running', ranks: [{ rank: 0, state: 'ready' }] } as unknown as ClusterStatus;

interface Served {
  clusters: Clusters;
  /** The server's answers, which a test may change. */
  api: ClustersApi;
  polls: { poll: Poll; looks: Poll };
  asked: () => Promise<void>;
  count: () => number;
}

/** Clusters of a server that counts requests for the ranks' load; `asked` waits for the next. */
function served(t: TestContext): Served {
  let count = 0;
  let told: () => void = () => undefined;
  const api = {
    clusters: () => Promise.resolve({ clusters: [CARD], now: 0 }),
    questions: () => Promise.resolve([]),
    runs: () => Promise.resolve([]),
    load: () => {
      count += 1;
      told();
      return Promise.resolve(new Map());
    }
  };
  const clusters = new Clusters(api as unknown as ClustersApi);
  const polls = clusters as unknown as { poll: Poll; looks: Poll };
  t.after(() => {
    polls.looks.dispose();
    polls.poll.dispose();
  });
  return { clusters, api: api as unknown as ClustersApi, polls, asked: () => new Promise(resolve => (told = resolve)), count: () => count };
}

/** Request everything, and wait until it has arrived. */
async function refreshed(clusters: Clusters): Promise<void> {
  const changed = new Promise<void>(resolve => clusters.changed.connect(() => resolve()));
  await clusters.refresh();
  await changed;
}

test('the load of ranks is requested only while they are visible', async t => {
  const { clusters, polls, asked, count } = served(t);
  await refreshed(clusters);
  assert.equal(clusters.all.length, 1);
  assert.equal(count(), 0);
  const first = asked();
  clusters.setSeen(true);
  await first;
  clusters.setSeen(false);
  for (const until = Date.now() + 10_000; polls.looks.state.phase !== 'stopped'; ) {
    assert.ok(Date.now() < until, 'it goes on');
    await new Promise(setImmediate);
  }
  const before = count();
  await refreshed(clusters);
  assert.equal(count(), before);
  const again = asked();
  clusters.setSeen(true);
  await again;
});

test('polling follows the setting, and is faster while a cluster is starting', async t => {
  const { clusters, polls } = served(t);
  await refreshed(clusters);
  clusters.setInterval(7);
  assert.equal(polls.poll.frequency.interval, 7_000);
  clusters.all = [{ ...CARD, state: 'starting' }];
  clusters.setInterval(7);
  assert.equal(polls.poll.frequency.interval, 1_000);
});

test('commands are updated when a cluster is added, not with every answer', async t => {
  const { clusters, api } = served(t);
  let told = 0;
  whenPossibleChanges(clusters, () => (told += 1));
  await refreshed(clusters);
  assert.equal(told, 1);
  await refreshed(clusters);
  assert.equal(told, 1);
  api.clusters = () => Promise.resolve({ clusters: [CARD, { ...CARD, name: 'two' }], now: 0 });
  await refreshed(clusters);
  assert.equal(told, 2);
});

test('a question is shown again if its answer did not reach the server', async t => {
  const { clusters, api } = served(t);
  const question = { id: 'q', text: 'Password:' } as Question;
  api.questions = () => Promise.resolve([question]);
  await refreshed(clusters);
  assert.deepEqual(clusters.questions, [question]);
  api.answer = () => Promise.reject(new ApiError('the Jupyter server does not respond', 0));
  assert.equal(await clusters.answer(question, 'x'), false);
  assert.deepEqual(clusters.questions, []);
  await refreshed(clusters);
  assert.deepEqual(clusters.questions, [question]);
  // After a logout the question stays open; any other refusal means that no answer is needed.
  for (const [status, isLoggedOut] of [[400, false], [401, true], [403, true], [403, false]] as const) {
    api.answer = () => Promise.reject(new ApiError('no', status, {}, isLoggedOut));
    assert.equal(await clusters.answer(question, 'x'), !isLoggedOut, `${status}`);
  }
});

test('a failed list of runs is reported, and the load of ranks is still shown', async t => {
  const { clusters, api } = served(t);
  await refreshed(clusters);
  assert.equal(clusters.areRunsKnown, false);
  api.runs = () => Promise.reject(new ApiError('Stale file handle', 503));
  api.load = () => Promise.resolve(new Map([[0, { cpu: 7 }]]));
  const loaded = new Promise<void>(resolve => {
    clusters.changed.connect(() => clusters.loadOf(CARD).size > 0 && resolve());
  });
  clusters.setSeen(true);
  await loaded;
  clusters.setSeen(false);
  assert.equal(clusters.runsTrouble, 'Stale file handle: retrying.');
  assert.equal(clusters.areRunsKnown, false);
});

test('a cluster that does not answer delays no load of others', async t => {
  const { clusters, api } = served(t);
  const silent = { ...CARD, name: 'silent' };
  api.clusters = () => Promise.resolve({ clusters: [silent, CARD], now: 0 });
  await refreshed(clusters);
  let cpu = 0;
  const asked: string[] = [];
  api.load = card => {
    asked.push(card.name);
    return card === silent ? new Promise(() => undefined) : Promise.resolve(new Map([[0, { cpu: ++cpu }]]));
  };
  const seen = new Promise<void>(resolve => {
    clusters.changed.connect(() => clusters.loadOf(CARD).get(0)?.cpu === 2 && resolve());
  });
  clusters.setSeen(true);
  await seen;
  clusters.setSeen(false);
  assert.deepEqual(asked, ['silent', 'one', 'one']); // and is not asked again meanwhile
});

test('a cluster does not inherit the error of an earlier one with its name', async t => {
  const { clusters, api } = served(t);
  await refreshed(clusters);
  api.act = () => Promise.reject(new ApiError('cluster one is gone', 410));
  await clusters.act(CARD, 'stop');
  assert.equal(clusters.complaintOf(CARD), 'stop: cluster one is gone');
  const { clusters: list } = api;
  api.clusters = () => Promise.resolve({ clusters: [], now: 0 });
  await refreshed(clusters);
  api.clusters = list;
  await refreshed(clusters);
  assert.equal(clusters.complaintOf(CARD), '');
});
