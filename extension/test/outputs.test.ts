import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { Outputs } from '../src/run/outputs';
import type { DisplayEvent } from '../src/schema';

function display(rank: number, text: string, more: Partial<DisplayEvent> = {}): DisplayEvent {
  return { kind: 'display', rank, seq: 0, t: 0, data: { 'text/plain': text }, ...more };
}

function shown(outputs: Outputs, collapsed = true): string[] {
  return outputs
    .grouped(null, collapsed)
    .map(each => `${each.ranks.join(',')}: ${String(each.data['text/plain'])}`);
}

test('result values follow displays, in the order of ranks', () => {
  const outputs = new Outputs();
  outputs.add(display(1, 'b', { result: true }));
  outputs.add(display(1, 'figure'));
  outputs.add(display(0, 'a', { result: true }));
  assert.deepEqual(shown(outputs), ['1: figure', '0: a', '1: b']);
});

test('equal values of ranks are shown once, unless collapsing is off', () => {
  const outputs = new Outputs();
  [2, 0, 1].forEach(rank => outputs.add(display(rank, rank === 1 ? 'other' : 'same', { result: true })));
  assert.deepEqual(shown(outputs), ['0,2: same', '1: other']);
  assert.deepEqual(shown(outputs, false), ['0: same', '1: other', '2: same']);
});

test('an update replaces its rank’s output; clear_output waits for the next one', () => {
  const outputs = new Outputs();
  outputs.add(display(0, 'one', { display_id: 'x' }));
  outputs.add(display(1, 'one', { display_id: 'x' }));
  outputs.add(display(0, 'two', { display_id: 'x', update: true }));
  assert.deepEqual(shown(outputs), ['0: two', '1: one']);
  outputs.add({ ...display(0, ''), data: {}, clear: 'next' });
  assert.deepEqual(shown(outputs), ['0: two', '1: one']);
  outputs.add(display(0, 'newer', { display_id: 'x', update: true }));
  assert.deepEqual(shown(outputs), ['0: newer', '1: one']);
  outputs.add(display(0, 'three'));
  assert.deepEqual(shown(outputs), ['1: one', '0: three']);
});
