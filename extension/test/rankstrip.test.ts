/** Choosing ranks in a strip: what its cells say, and what keys and ranges choose. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import type { Profile } from '../src/schema';
import { cellWords, keyPlace, rankCells, withRange } from '../src/view/rankstrip';

const times = { compute: 0, data: 0, exposed: 0, idle: 0, communication: 0 };
const profile: Profile = {
  wall: 1_000, ranks: [{ ...times, rank: 4, waiting: 340 }, { ...times, rank: 6, waiting: 0 }],
  kinds: [], stragglers: [], named: [], diagnosis: '', dropped: {}
};

test('a cell of the strip states its rank’s state, and its wait if known', () => {
  const stateOf = (rank: number): 'ok' | 'lost' => (rank === 6 ? 'lost' : 'ok');
  assert.deepEqual(rankCells([4, 6], stateOf, null).map(cellWords), ['rank 4: ok', 'rank 6: lost']);
  assert.deepEqual(rankCells([4, 6, 9], stateOf, profile).map(cellWords), [
    'rank 4: ok, waited for others for 34 % of the run', 'rank 6: lost, waited for others for 0 % of the run', 'rank 9: ok'
  ]);
  const empty = rankCells([4], stateOf, { ...profile, wall: 0 });
  assert.equal(empty[0].waiting, null);
});

test('keys move within the strip', () => {
  assert.deepEqual(['ArrowLeft', 'ArrowRight', 'Home', 'End'].map(key => keyPlace(key, 5, 64)), [4, 6, 0, 63]);
  assert.deepEqual([keyPlace('ArrowUp', 0, 64), keyPlace('ArrowDown', 63, 64)], [0, 63]);
  assert.equal(keyPlace('x', 5, 64), null);
});

test('a range in either direction is added to the selection', () => {
  const cells = rankCells([0, 2, 4, 6, 8], () => 'ok', null);
  assert.deepEqual([...withRange(cells, new Set([8]), 1, 3)].sort(), [2, 4, 6, 8]);
  assert.deepEqual([...withRange(cells, new Set(), 3, 1)], [2, 4, 6]);
});
