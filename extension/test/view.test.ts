import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { Scroll } from '../src/view/scroll';
import { textFilter } from '../src/log/textfilter';

test('the log follows its end until the reader scrolls away, and again at the end', () => {
  const scroll = new Scroll();
  scroll.resize(1_000, 300);
  assert.equal(scroll.offset, 700);
  scroll.resize(1_500, 300);
  assert.equal(scroll.offset, 1_200);
  scroll.scrolledTo(900);
  scroll.resize(2_000, 300);
  assert.deepEqual([scroll.offset, scroll.isFollowing], [900, false]);
  scroll.moveTo(Infinity);
  scroll.resize(2_500, 300);
  assert.equal(scroll.offset, 2_200);
  scroll.resize(100, 300);
  assert.deepEqual([scroll.offset, scroll.spacer], [0, 100]);
});

test('scrolling by the browser as the view grows does not end following', () => {
  const scroll = new Scroll();
  scroll.resize(1_000, 300);
  scroll.scrolledTo(670, 330);
  assert.deepEqual([scroll.offset, scroll.isFollowing], [670, true]);
  scroll.scrolledTo(600, 330);
  assert.deepEqual([scroll.offset, scroll.isFollowing], [600, false]);
});

test('a list taller than the browser’s limit can be scrolled to both ends', () => {
  const scroll = new Scroll(10_000);
  scroll.resize(1_000_000, 500);
  assert.equal(scroll.spacer, 10_000);
  assert.equal(scroll.scrollTop, 9_500);
  scroll.scrolledTo(0);
  assert.equal(scroll.offset, 0);
  scroll.scrolledTo(9_500);
  assert.equal(scroll.offset, 999_500);
  scroll.scrolledTo(9_499.5);
  assert.deepEqual([scroll.offset, scroll.isFollowing], [999_500, true]);
  scroll.moveTo(400_000);
  const { scrollTop } = scroll;
  scroll.scrolledTo(scrollTop);
  assert.ok(Math.abs(scroll.offset - 400_000) < 1);
});

test('a filter is text, or a regular expression between slashes', () => {
  const matches = (typed: string, text: string): boolean => {
    const filter = textFilter(typed);
    return typeof filter === 'function' && filter(text);
  };
  assert.equal(textFilter(''), null);
  assert.ok(matches('LOSS', 'the loss is'));
  assert.ok(matches('a.b(', 'a.b(c'));
  assert.ok(!matches('a.b', 'axb'));
  assert.ok(matches('/^a.b$/', 'axb'));
  assert.ok(!matches('/A/', 'a') && matches('/A/i', 'a'));
  assert.ok(matches('/tmp', 'in /tmp/x'));
  assert.match(String(textFilter('/(/')), /not a valid regular expression/);
});
