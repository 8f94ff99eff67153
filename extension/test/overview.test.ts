/** The overview of a long run: read, laid out, and painted like the spans that it summarizes. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { runSlice } from '../src/run/slices';
import type { OverviewHead, OverviewLane } from '../src/schema';
import { layOut, Rows } from '../src/timeline/lanes';
import { Overview } from '../src/timeline/overview';
import { WAIT } from '../src/timeline/parts';
import { TimeScale } from '../src/timeline/range';
import { Row } from '../src/timeline/row';
import { Samples } from '../src/timeline/samples';
import { Strip } from '../src/timeline/strip';

const HEAD: OverviewHead = { rules: 1, read: 10, spans: 5_000, dropped: { negative: 2 } };

function lane(rank: number, cat: string, spans: Array<[number, number, number, number?]>, from = 0): OverviewLane {
  return {
    rank, cat, from, define: [{ name: 'one' }, { name: 'two', tensor: 't' }], name: spans.map(([, , name]) => name),
    start: spans.map(([start], i) => start - (i ? spans[i - 1][0] : 0)), dur: spans.map(([, dur]) => dur),
    busy: spans.some(span => span.length > 3) ? spans.map(([, dur, , busy]) => busy ?? dur) : []
  };
}

function read(...lanes: OverviewLane[]): Overview {
  const text = [HEAD, ...lanes].map(line => `${JSON.stringify(line)}\n`).join('');
  const last = runSlice(Overview.read(text), Infinity);
  assert.ok(last.done && last.value);
  return last.value;
}

test('an empty overview file means that there is no overview', () => {
  assert.deepEqual(runSlice(Overview.read(''), Infinity), { done: true, value: null });
});

test('an overview has its span counts, and its lanes in order', () => {
  const overview = read(
    lane(3, 'op', [[100, 50, 2, 10], [200, 10, 3]], 2), lane(3, 'step', [[0, 900, 5]], 4), lane(0, 'data', [[50, 1, 0]])
  );
  assert.equal(overview.count, 5_000);
  assert.deepEqual([...overview.dropped], [['negative', 2]]);
  assert.deepEqual(overview.ranks, [0, 3]);
  assert.deepEqual(overview.cats(3), ['step', 'op']);
  assert.deepEqual(overview.extent, { from: 0, to: 900 });
  const { start, dur, name, busy, length } = overview.columns(3, 'op');
  assert.deepEqual([[...start], [...dur], [...name], [...busy!], length], [[100, 200], [50, 10], [2, 3], [10, 10], 2]);
  assert.equal(overview.name(3, 3).name, 'two');
  assert.equal(overview.name(3, 99).name, '?');
  assert.equal(overview.columns(3, 'user').length, 0);
  assert.equal(overview.columns(0, 'data').busy, undefined);
});

test('a block is painted with its coverage at every zoom', () => {
  const blocks = Array.from({ length: 1_000 }, (_, i): [number, number, number, number] => [1_000 * i, 1_000, 0, 250]);
  const columns = read(lane(0, 'op', blocks)).columns(0, 'op');
  for (const [from, to] of [[0, 1_000_000], [0, 100_000], [400_000, 402_000]]) {
    const strip = new Strip(100);
    strip.add(new Row(columns), new TimeScale({ from, to }, 100));
    strip.cover.forEach((cover, x) => assert.ok(Math.abs(cover - 0.25) < 0.02, `${from}–${to}: ${cover} at ${x}`));
    assert.equal(strip.edge.some(edge => edge === 1), false, 'a block begins where no span need begin');
    assert.equal(strip.wide.length, 0, 'nor has it a label');
  }
});

test('collectives of an overview are waits and transfers without matching', () => {
  const overview = read(lane(0, 'collective', [[0, 500, WAIT], [500, 100, 1]]), lane(0, 'user', [[0, 700, 0]]));
  const last = runSlice(layOut(new Rows(overview), new Samples(), [0], { open: new Set(), meters: false }), Infinity);
  assert.ok(last.done);
  const [rank] = last.value.lanes;
  assert.deepEqual(rank.lines.map(({ layers }) => layers.map(({ cat, isParts }) => [cat, isParts])), [
    [['user', false]], [['collective', true]]
  ]);
});
