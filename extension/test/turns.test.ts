import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Turns } from '../src/view/timeline/turns';

const FRAME = 16;

/** Return what each frame does: layout takes `slice` ms, and `isDone` says if it is complete. */
function frames(count: number, slice: number, isDone: (frame: number) => boolean, hasPicture = true): string[] {
  const turns = new Turns();
  const real = performance.now;
  let now = 0;
  performance.now = () => now;
  try {
    return Array.from({ length: count }, (_, frame) => {
      now = frame * FRAME;
      let did = '';
      const lay = (): boolean => {
        did += 'lays';
        now += slice;
        return isDone(frame);
      };
      if (turns.take(lay, hasPicture)) {
        did += 'paints';
        turns.end();
      }
      return did;
    });
  } finally {
    performance.now = real;
  }
}

test('a quick layout is painted in the same frame', () => {
  assert.deepEqual(frames(2, 1, () => true), ['layspaints', 'layspaints']);
});

test('a slow layout has its own frames, with occasional repaints', () => {
  const did = frames(20, 10, () => false);
  assert.ok(did.every(each => each === 'lays' || each === 'paints'), did.join());
  assert.deepEqual(did.indexOf('paints'), 7);
  assert.ok(did.filter(each => each === 'paints').length === 2, did.join());
});

test('a live run that grows in each frame is still painted', () => {
  const did = frames(20, 10, () => true);
  assert.ok(did.filter(each => each.endsWith('paints')).length >= 2, did.join());
});

test('the first paint does not wait for the layout to complete', () => {
  assert.deepEqual(frames(1, 10, () => false, false), ['layspaints']);
});
