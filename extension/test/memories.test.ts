/** The state of a run's views survives a reload of the page. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { filterOf, UNFILTERED } from '../src/log/typedfilter';
import { Memories } from '../src/run/memories';

/** Storage that lasts as long as the browser's tab. */
function storage(room = Infinity): Pick<Storage, 'getItem' | 'setItem'> {
  const items = new Map<string, string>();
  return {
    getItem: key => items.get(key) ?? null,
    setItem: (key, value) => {
      if (value.length > room) {
        throw new Error('no room');
      }
      items.set(key, value);
    }
  };
}

test('the state of a view is restored from storage', () => {
  const kept = storage();
  const before = new Memories(kept);
  const memory = before.at('r1', 'cell');
  memory.tab = 'metrics';
  memory.choice.compared = ['r0'];
  memory.choice.isLog = true;
  memory.choice.pinned.add('loss');
  memory.choice.window.setExtent({ from: 0, to: 1000 });
  memory.choice.window.zoomTo({ from: 10, to: 20 });
  memory.look.open = new Set(['3']);
  Object.assign(memory.filter, { ranks: [1, 2], text: '/loss/i', collapsed: false });
  assert.equal(before.at('r1', 'cell'), memory);
  before.save();

  const again = new Memories(kept).at('r1', 'cell');
  again.choice.window.setExtent({ from: 0, to: 1000 });
  assert.deepEqual(
    [again.tab, again.choice.compared, again.choice.isLog, [...again.choice.pinned], again.choice.window.range],
    ['metrics', ['r0'], true, ['loss'], { from: 10, to: 20 }]
  );
  assert.deepEqual(again.look.open, new Set(['3']));
  const { ranks, text, collapsed } = filterOf(again.filter);
  assert.deepEqual([ranks, text?.('Loss 3'), text?.('acc 3'), collapsed], [new Set([1, 2]), true, false, false]);
  assert.deepEqual([new Memories(kept).at('r1', 'panel').tab, UNFILTERED.ranks], ['logs', null], 'each place has its own');
});

test('stored state survives a second reload, and the oldest is dropped', () => {
  const kept = storage();
  const first = new Memories(kept);
  first.at('r1', 'cell').tab = 'profile';
  first.save();
  const second = new Memories(kept);
  second.at('r2', 'cell').tab = 'timeline';
  second.save();
  const third = new Memories(kept);
  assert.deepEqual([third.at('r1', 'cell').tab, third.at('r2', 'cell').tab], ['profile', 'timeline']);
  for (let i = 0; i < 200; i++) {
    third.at(`new${i}`, 'cell').tab = 'metrics';
  }
  third.save();
  assert.deepEqual([new Memories(kept).at('r1', 'cell').tab, new Memories(kept).at('new0', 'cell').tab], ['logs', 'metrics']);
});

test('full or corrupt storage leaves views in their default state', () => {
  const full = new Memories(storage(0));
  full.at('r1', 'cell').tab = 'profile';
  full.save();
  for (const text of ['{', '{"a": 1}', 'null', '[1]', '[["cell r1", {}]]']) {
    assert.equal(new Memories({ getItem: () => text, setItem: () => undefined }).at('r1', 'cell').tab, 'logs');
  }
});
