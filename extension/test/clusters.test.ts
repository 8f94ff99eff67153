/** What the sidebar asks the server, and when. */
import { strict as assert } from 'node:assert';
import { test, type TestContext } from 'node:test';

import type { Poll } from '@lumino/polling';

import type { ClustersApi } from '../src/api/clusters';
import type { ClusterStatus } from '../src/cluster_status';
import { Clusters } from '../src/sidebar/clusters';

const CARD = { name: 'one', state: 'running', ranks: [{ rank: 0, state: 'ready' }] } as unknown as ClusterStatus;

interface Served {
  clusters: Clusters;
  polls: { poll: Poll; looks: Poll };
  asked: () => Promise<void>;
  count: () => number;
}

/** Clusters at a server that notes when it is asked how busy ranks are; `asked` ends with the next such question. */
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
  return { clusters, polls, asked: () => new Promise(resolve => (told = resolve)), count: () => count };
}

/** What is there is asked for, and has come. */
async function refreshed(clusters: Clusters): Promise<void> {
  const changed = new Promise<void>(resolve => clusters.changed.connect(() => resolve()));
  await clusters.refresh();
  await changed;
}

test('how busy ranks are is asked while somebody looks at them, and only then', async t => {
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

test('the server is asked as often as is set, and more often while something is under way', async t => {
  const { clusters, polls } = served(t);
  await refreshed(clusters);
  clusters.setInterval(7);
  assert.equal(polls.poll.frequency.interval, 7_000);
  clusters.all = [{ ...CARD, state: 'starting' }];
  clusters.setInterval(7);
  assert.equal(polls.poll.frequency.interval, 1_000);
});
