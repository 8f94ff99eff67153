/** The geometry of the timeline, and the golden traces as it reads them. */
import { strict as assert } from 'node:assert';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { RunModel } from '../src/run/model';
import { runSlice } from '../src/run/slices';
import type { Run, SpansEvent } from '../src/schema';
import { Collectives, type CollectivesAnswer } from '../src/timeline/collectives';
import { GrowingColumns } from '../src/timeline/columns';
import { markOf, nearest, neighbour, sameName, Search, spotOf, type Spot } from '../src/timeline/find';
import { layOut, nameOf, Rows, type Lane } from '../src/timeline/lanes';
import { Look } from '../src/timeline/look';
import { partRows, TRANSFER, WAIT } from '../src/timeline/parts';
import { arrivals, droppedWords, who } from '../src/timeline/phrases';
import { inside, lasting, panned, showing, ticks, TimeScale, zoomed } from '../src/timeline/range';
import { marked, Row, stack } from '../src/timeline/row';
import { Samples } from '../src/timeline/samples';
import { FARTHEST, Spans } from '../src/timeline/spans';
import { Strip } from '../src/timeline/strip';
import { summary } from '../src/timeline/summary';
import { totals } from '../src/timeline/totals';
import { Input } from '../src/view/timeline/input';
import { wideBands } from '../src/view/timeline/painter';

const TRACES = join(__dirname, '../../../tests/support/traces');
const names = readdirSync(TRACES, { withFileTypes: true }).filter(entry => entry.isDirectory()).map(({ name }) => name);

interface Expected {
  dropped: { spans: number; why: { [reason: string]: number } };
}

function read(name: string): RunModel {
  const file = (part: string): string => readFileSync(join(TRACES, name, part), 'utf8');
  const model = new RunModel(JSON.parse(file('run.json')) as Run);
  [...model.take(file('events.jsonl'))];
  model.complete();
  return model;
}

function expected(name: string): Expected {
  return JSON.parse(readFileSync(join(TRACES, name, 'expected.json'), 'utf8')) as Expected;
}

/** Return columns of spans that are given as [start, dur, name]. */
function columns(spans: Array<[number, number, number?]>): GrowingColumns {
  const made = new GrowingColumns();
  made.reserve(spans.length);
  spans.forEach(([start, dur, name]) => made.add(start, dur, name ?? 0));
  return made.sort();
}

/** Pseudorandom numbers, the same each time. */
function* random(seed: number): Generator<number, never> {
  for (let x = seed; ; ) {
    x = (x * 1103515245 + 12345) % 2147483648;
    yield x / 2147483648;
  }
}

function matched(name: string, model: RunModel): Collectives {
  const answer = JSON.parse(readFileSync(join(TRACES, name, 'collectives.json'), 'utf8')) as CollectivesAnswer;
  const last = runSlice(Collectives.of(answer, model.spans), Infinity);
  assert.ok(last.done && last.value);
  return last.value;
}

for (const name of names) {
  test(`${name}: invalid spans are dropped and counted by reason`, () => {
    const { spans } = read(name);
    const { dropped } = expected(name);
    assert.deepEqual(Object.fromEntries([...spans.dropped].sort()), dropped.why);
    assert.equal([...spans.dropped.values()].reduce((a, b) => a + b, 0), dropped.spans);
  });

  test(`${name}: spans are painted in rows without overlap`, () => {
    const { spans } = read(name);
    let count = 0;
    for (const rank of spans.ranks) {
      for (const cat of spans.cats(rank)) {
        const lane = spans.columns(rank, cat);
        count += lane.length;
        const rows = stack(lane);
        assert.equal(rows.reduce((sum, row) => sum + row.length, 0), lane.length);
        for (const row of rows) {
          for (let i = 1; i < row.length; i++) {
            assert.ok(row.start(i) >= row.end(i - 1), `${rank} ${cat} ${i}`);
          }
          const strip = new Strip(300);
          const from = row.start(0) - 1;
          strip.add(row, new TimeScale({ from, to: Math.max(row.reach, from + 10) + 1 }, 300));
          assert.ok(strip.cover.some(cover => cover > 0));
        }
      }
    }
    assert.equal(count, spans.count);
  });

  test(`${name}: parts of collectives fill their spans`, () => {
    const model = read(name);
    const collectives = matched(name, model);
    for (const rank of model.spans.ranks) {
      const lane = model.spans.columns(rank, 'collective');
      let sum = 0;
      for (const row of done(partRows(rank, lane, collectives))) {
        for (let i = 0; i < row.length; i++) {
          sum += row.columns.dur[i];
          assert.ok([WAIT, TRANSFER].includes(row.name(i)));
          assert.ok(collectives.at(collectives.of(rank, row.owners![i])).ranks.includes(rank));
        }
      }
      assert.equal(sum, lane.dur.subarray(0, lane.length).reduce((a, b) => a + b, 0));
    }
    for (let i = 0; i < collectives.length; i++) {
      const collective = collectives.at(i);
      assert.match(who(collective), /rank/i);
      assert.equal(arrivals(collective).filter(({ isLast }) => isLast).length, 1);
    }
  });
}

/** Return the result of all steps. */
function done<T>(steps: Iterator<void, T>): T {
  const last = runSlice(steps, Infinity);
  assert.ok(last.done);
  return last.value;
}

test('spans are sorted by start, and equal starts keep their order', () => {
  const numbers = random(7);
  for (const disorder of [0, 3, 1000]) {
    const made = new GrowingColumns();
    const plain: Array<[number, number]> = [];
    for (let piece = 0; piece < 4; piece++) {
      made.reserve(700);
      for (let i = 0; i < 700; i++) {
        const start = Math.floor(10 * (piece * 700 + i) - disorder * 10 * numbers.next().value);
        made.add(start, 1, plain.length);
        plain.push([start, plain.length]);
      }
      made.sort();
    }
    plain.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    assert.deepEqual(plain, plain.map((_, i) => [made.start[i], made.name[i]]));
  }
});

test('a clock offset that arrives later shifts existing spans', () => {
  const spans = new Spans();
  const info = { rank: 0, host: 'a', pid: 1, device: 'cpu' };
  const event: SpansEvent = { kind: 'spans', rank: 0, seq: 0, t: 0, cat: 'x', name: [0, 0], start: [1000, 5], dur: [1, 2] };
  spans.setClocks([info]);
  spans.take(event);
  spans.setClocks([{ ...info, clock: { offset: 300, error: 1 } }]);
  spans.take(event);
  assert.deepEqual([...spans.columns(0, 'x').start.subarray(0, 4)], [700, 700, 705, 705]);
});

test('the cost of painting depends on pixels, and coverage is accurate', () => {
  const width = 500;
  const dense = columns(Array.from({ length: 200_000 }, (_, i) => [i * 10, 5, i % 7]));
  const [row] = stack(dense);
  row.blocks;
  for (const range of [{ from: 0, to: 2e6 }, { from: 5e5, to: 1e6 }, { from: 1e6, to: 1.0005e6 }]) {
    const strip = new Strip(width);
    strip.add(row, new TimeScale(range, width));
    assert.ok(strip.visited < 20 * width, `${strip.visited} for ${width} pixels`);
    const mean = strip.cover.reduce((a, b) => a + b, 0) / width;
    assert.ok(Math.abs(mean - 0.5) < 0.05, `${mean}`);
  }
});

test('distant bursts of spans leave the gap between them empty', () => {
  const spans: Array<[number, number]> = [];
  for (const burst of [0, 1e6]) {
    for (let i = 0; i < 1001; i++) {
      spans.push([burst + i, 1]);
    }
  }
  const strip = new Strip(1000);
  strip.add(new Row(columns(spans)), new TimeScale({ from: 0, to: 1.001e6 }, 1000));
  assert.deepEqual([...strip.cover].map((cover, x) => (cover > 0 ? x : -1)).filter(x => x > 2 && x < 997), []);
  assert.ok(strip.cover[0] > 0.9 && strip.cover[999] > 0.9);
});

test('overlapping spans get a row each, up to a limit', () => {
  const nested = stack(columns(Array.from({ length: 100 }, (_, i) => [i, 1000 - 2 * i])));
  assert.equal(nested.length, 100);
  const many = stack(columns(Array.from({ length: 5000 }, (_, i) => [i, 1e6])));
  assert.ok(many.length <= 128);
  assert.equal(many.reduce((sum, row) => sum + row.length, 0), 5000);
});

test('the span at or near the pointer is found', () => {
  const row = new Row(columns([[0, 100], [200, 0], [300, 50]]));
  assert.deepEqual([row.at(50, 5), row.at(150, 5), row.at(203, 5), row.at(352, 5), row.at(400, 5)], [0, -1, 1, 2, -1]);
  assert.equal(marked(row, () => false).length, 0);
});

test('zoom keeps the moment under the pointer, and nothing leaves the bounds', () => {
  const bounds = { from: 0, to: 1000 };
  assert.deepEqual(zoomed(bounds, 250, 0.5, bounds), { from: 125, to: 625 });
  assert.deepEqual(zoomed({ from: 125, to: 625 }, 250, 10, bounds), bounds);
  assert.equal(zoomed({ from: 0, to: 20 }, 10, 0.01, bounds).to - zoomed({ from: 0, to: 20 }, 10, 0.01, bounds).from, 10);
  assert.deepEqual(panned({ from: 800, to: 900 }, 500, bounds), { from: 900, to: 1000 });
  assert.deepEqual(inside({ from: -5, to: 2000 }, bounds), bounds);
  assert.deepEqual(showing({ from: 0, to: 100 }, { from: 500, to: 510 }, bounds), { from: 455, to: 555 });
});

test('ticks are round, and durations have three digits', () => {
  const labels = (from: number, to: number): string[] =>
    ticks(new TimeScale({ from, to }, 400)).map(({ label }) => label);
  assert.deepEqual(labels(0, 4e6), ['0 s', '1 s', '2 s', '3 s', '4 s']);
  assert.deepEqual(labels(1e6, 1e6 + 400).slice(0, 3), ['1.0000 s', '1.0001 s', '1.0002 s']);
  assert.deepEqual(labels(0, 4 * 600e6).slice(0, 2), ['0 s', '16:40']);
  assert.deepEqual([450, 12_345, 1_200_000, 125e6].map(lasting), ['450 µs', '12.3 ms', '1.20 s', '125 s']);
});

test('totals of a range count only the parts of spans inside it', () => {
  const { spans } = read('straggler');
  const all = totals(spans, { from: -Infinity, to: Infinity });
  assert.equal(all.reduce((sum, { count }) => sum + count, 0), spans.count);
  const rank = spans.ranks[0];
  const lane = spans.columns(rank, 'collective');
  const from = lane.start[3] + 1;
  const found = totals(spans, { from, to: lane.start[3] + lane.dur[3] }, [rank]).find(({ cat }) => cat === 'collective');
  assert.deepEqual([found?.count, found?.sum], [1, lane.dur[3] - 1]);
});

test('search visits all matches in time order, in both directions, and wraps', () => {
  const { spans } = read('straggler');
  const search = new Search(spans, ' ALLreduce');
  const count = runSlice(search.counting(), Infinity).value as number;
  assert.ok(count > 10);
  const seen = new Set<string>();
  let spot = search.next(null, -Infinity, 1);
  const first = spot;
  let t = -Infinity;
  while (spot && !seen.has(JSON.stringify(spot))) {
    seen.add(JSON.stringify(spot));
    const start = spans.columns(spot.rank, spot.cat).start[spot.i];
    assert.ok(start >= t);
    t = start;
    spot = search.next(spot, 0, 1);
  }
  assert.equal(seen.size, count);
  assert.deepEqual(spot, first);
  const back: string[] = [];
  for (let i = 0; i < count; i++) {
    spot = search.next(spot, 0, -1);
    back.push(JSON.stringify(spot));
  }
  assert.deepEqual(back.reverse(), [...seen]);
});

test('search is limited to the ranks that are shown', () => {
  const { spans } = read('straggler');
  const [, only] = spans.ranks;
  const all = runSlice(new Search(spans, 'allreduce').counting(), Infinity).value as number;
  const search = new Search(spans, 'allreduce', new Set([only]));
  const count = runSlice(search.counting(), Infinity).value as number;
  assert.ok(count > 3 && count < all);
  for (const step of [1, -1] as const) {
    const seen = new Set<string>();
    const keyOf = (spot: Spot): string => `${spot.cat} ${spot.i}`;
    for (let spot = search.next(null, -step * Infinity, step); spot && !seen.has(keyOf(spot)); spot = search.next(spot, 0, step)) {
      assert.equal(spot.rank, only);
      seen.add(keyOf(spot));
    }
    assert.equal(seen.size, count);
  }
  // The span to continue from may be in a rank that is not shown.
  assert.equal(search.next({ rank: spans.ranks[0], cat: 'collective', i: 2 }, 0, 1)?.rank, only);
});

test('the timeline’s text summary counts the spans of the ranks shown', () => {
  const { spans } = read('straggler');
  const [, only] = spans.ranks;
  const count = spans.cats(only).reduce((sum, cat) => sum + spans.columns(only, cat).length, 0);
  assert.ok(count > 3 && count < spans.count);
  assert.ok(summary(spans, null, [only]).startsWith(`Timeline of rank ${only}: ${count} spans over `));
  assert.ok(summary(spans, null, spans.ranks).includes(`: ${spans.count} spans over `));
});

test('the next span of the same name is found; the first has no neighbor', () => {
  const { spans } = read('straggler');
  const rank = spans.ranks[0];
  const { name } = spans.columns(rank, 'collective');
  const next = sameName(spans, { rank, cat: 'collective', i: 0 }, 1);
  assert.ok(next && next.i > 0 && name[next.i] === name[0]);
  assert.deepEqual(sameName(spans, next, -1), { rank, cat: 'collective', i: 0 });
  assert.equal(neighbour(spans, { rank, cat: 'collective', i: 0 }, -1), null);
});

test('the next span of a name may differ in arguments but not in its tensor', () => {
  const spans = new Spans();
  spans.setClocks([{ rank: 0, host: 'a', pid: 1, device: 'cpu' }]);
  const define = [{ name: 'step', i: 0 }, { name: 'load' }, { name: 'step', i: 1 }, { name: 'step', tensor: 'x' }];
  spans.take({ kind: 'spans', rank: 0, seq: 0, t: 0, cat: 'user', define, name: [0, 1, 3, 2], start: [0, 10, 10, 10], dur: [5, 5, 5, 5] });
  const at = (i: number, step: 1 | -1): number | undefined => sameName(spans, { rank: 0, cat: 'user', i }, step)?.i;
  assert.deepEqual([at(0, 1), at(3, -1), at(2, 1), at(1, 1)], [3, 0, undefined, undefined]);
});

test('an abandoned collective says that its ranks waited in vain', () => {
  const common = { op: 'allreduce', tensor: 'grad', library: 'hvd.torch', group: '', n: 0, cost: 0, spread: 0, last: 5 };
  const one = {
    ...common, ranks: [0, 1], starts: [5, 5], cuts: [59e6 + 5, 40e6], ends: [59e6 + 5, 40e6],
    straggler: 0, absent: [2], givenUp: [0, 1]
  };
  assert.equal(who(one), 'Ranks 0, 1 waited in vain, up to 59.0 s. Rank 2 did not take part.');
  const alone = { ...one, ranks: [1], starts: [5], cuts: [5 + 2e6], ends: [5 + 2e6], absent: [0, 2], givenUp: [1] };
  assert.equal(who(alone), 'Rank 1 waited 2.00 s in vain. Ranks 0, 2 did not take part.');
  const missing = { ...alone, cuts: [5], absent: [2], givenUp: [] };
  assert.equal(who(missing), 'Only rank 1 is known to have taken part. No span of rank 2 is known.');
});

test('dropped spans are listed by reason', () => {
  assert.equal(droppedWords(new Map()), '');
  assert.equal(droppedWords(new Map([['negative', 2], ['rank', 1]])), '3 spans dropped: 2 × a negative duration, 1 × a rank that is not in the run');
});

test('the span nearest to a moment is found', () => {
  const { spans } = read('straggler');
  const rank = spans.ranks[0];
  const { start, length } = spans.columns(rank, 'collective');
  const at = (t: number): number | undefined => nearest(spans, rank, 'collective', t)?.i;
  assert.deepEqual([at(-1e9), at(start[4]), at(start[4] + 1), at(1e12)], [0, 4, 4, length - 1]);
  assert.equal(nearest(spans, rank, 'no such', 0), null);
});

test('a closed rank has two lines, an open one a lane for each category', () => {
  const model = read('slow-loader');
  const { spans, samples } = model;
  const rows = new Rows(spans);
  const lay = (...open: string[]): Lane[] =>
    done(layOut(rows, samples, spans.ranks, { open: new Set(open), meters: false })).lanes;
  assert.deepEqual(lay().map(({ kind, lines }) => [kind, lines.length]), spans.ranks.map(() => ['rank', 2]));
  const open = lay('2', '2/phase');
  assert.deepEqual(open.filter(({ kind, rank }) => kind === 'cat' && rank === 2).map(({ label }) => label), spans.cats(2).map(nameOf));
  assert.ok(open.some(({ kind }) => kind === 'tensor'));
  for (const [i, lane] of open.entries()) {
    assert.ok(i === 0 || lane.y >= open[i - 1].y + open[i - 1].height);
    assert.ok(lane.lines.every(({ y, height }) => y >= lane.y && y + height <= lane.y + lane.height));
  }
  rows.collectives = matched('slow-loader', model);
  assert.ok(lay('0').some(({ cat, lines }) => cat === 'collective' && lines[0].layers[0].isParts));
});

test('fit shows the selection, then the run, then distant spans', () => {
  const look = new Look();
  look.setExtent({ from: 0, to: 1e6 }, 1e6);
  const all = look.range;
  assert.ok(all.from <= 0 && all.to >= 1e6 && !look.isFar);
  look.zoom(5e5, 0.5);
  assert.equal(look.isFitted, false);
  look.setExtent({ from: 0, to: 2e6 }, null);
  assert.ok(look.range.to < 1e6, 'what one looks at stays');
  look.fit({ from: 1e5, to: 2e5 });
  assert.ok(look.range.from >= 0.9e5 && look.range.to <= 2.1e5);
  look.fit(null);
  assert.ok(look.isFitted && look.range.to >= 2e6);
  look.setExtent({ from: -1e12, to: 1e12 }, 1e6);
  assert.ok(look.isFar && look.range.to < 1.1e6);
  look.fit(null);
  assert.ok(look.range.to >= 1e12);
  look.fit(null);
  assert.ok(look.range.to < 1.1e6);
});

test('a stored range is restored even if little of the run is read at first', () => {
  const look = new Look();
  look.setExtent({ from: 0, to: 1e8 }, 1e8);
  look.goTo({ from: 5e7, to: 6e7 });
  look.text = 'load';
  const again = new Look(JSON.parse(JSON.stringify(look)) as ReturnType<Look['toJSON']>);
  again.setExtent({ from: 0, to: 1e3 }, null);
  again.begin({ from: 0, to: 10 });
  again.setExtent({ from: 0, to: 1e8 }, 1e8);
  assert.deepEqual([again.range, again.text, again.isFitted], [{ from: 5e7, to: 6e7 }, 'load', false]);
  again.fit(null);
  again.setExtent({ from: 0, to: 2e8 }, 2e8);
  assert.ok(again.isFitted && again.range.to >= 2e8, 'what was looked at before is not sought for ever');
  assert.equal(new Look().toJSON().range, null);
});

test('a selected span stays selected when spans are added or clocks change', () => {
  const info = { rank: 0, host: 'a', pid: 1, device: 'cpu' };
  const spans = new Spans();
  spans.setClocks([{ ...info, clock: { offset: 3, error: 1 } }]);
  spans.take({ kind: 'spans', rank: 0, seq: 0, t: 0, cat: 'user', name: [1, 2, 2], start: [10, 10, 0], dur: [5, 5, 7] });
  const mark = markOf(spans, { rank: 0, cat: 'user', i: 2 });
  spans.take({ kind: 'spans', rank: 0, seq: 1, t: 0, cat: 'user', name: [3], start: [1], dur: [1] });
  assert.deepEqual(spotOf(spans, mark), { rank: 0, cat: 'user', i: 3 });
  assert.equal(spotOf(spans, { ...mark, name: 3 }), null);
  spans.setClocks([{ ...info, clock: { offset: -40, error: 1 } }]);
  assert.deepEqual(spotOf(spans, mark), { rank: 0, cat: 'user', i: 3 });
});

test('a canceled touch discards its selection', () => {
  const node = Object.assign(new EventTarget(), {
    clientWidth: 100, getBoundingClientRect: () => ({ left: 0, top: 0 }), setPointerCapture: () => undefined, focus: () => undefined
  });
  const look = new Look();
  let moves = 0;
  const nothing = (): void => undefined;
  const input = new Input(node as unknown as HTMLElement, node as unknown as HTMLElement, look, {
    moved: () => (moves += 1), hover: nothing, leave: nothing, click: nothing, zoomHere: nothing, key: () => false
  });
  const send = (type: string, clientX: number, shiftKey = false): boolean =>
    node.dispatchEvent(Object.assign(new Event(type), { button: 0, clientX, clientY: 5, shiftKey, pointerId: 1 }));
  send('pointerdown', 10);
  send('pointermove', 60);
  assert.ok(look.part && input.isDragging);
  const before = moves;
  send('pointercancel', 60);
  assert.deepEqual([look.part, input.isDragging, moves], [null, false, before + 1]);
  // A canceled touch that only panned leaves the earlier selection as it was.
  look.select({ from: 1, to: 2 });
  send('pointerdown', 10, true);
  send('pointermove', 60, true);
  send('pointercancel', 60);
  assert.deepEqual(look.part, { from: 1, to: 2 });
});

test('of too many bands, the widest are painted', () => {
  const model = read('slow-loader');
  const collectives = matched('slow-loader', model);
  const { from, to } = model.spans.extent!;
  const scale = new TimeScale({ from, to }, 10_000);
  const width = (i: number): number => collectives.extentOf(i).to - collectives.extentOf(i).from;
  const all = wideBands(collectives, scale, Infinity);
  assert.ok(all.length > 10 && all.every(i => width(i) >= 3 * scale.perPixel));
  const few = wideBands(collectives, scale, 5);
  assert.equal(few.length, 5);
  const others = all.filter(i => !few.includes(i));
  assert.ok(Math.min(...few.map(width)) >= Math.max(...others.map(width)));
  assert.deepEqual(wideBands(collectives, new TimeScale({ from, to }, 1), 5), [], 'narrower than can be seen');
});

test('a clock offset of more than ten years is ignored', () => {
  const info = { rank: 0, host: 'a', pid: 1, device: 'cpu' };
  const far = [{ ...info, clock: { offset: FARTHEST + 1, error: 1 } }];
  const spans = new Spans();
  spans.setClocks(far);
  spans.take({ kind: 'spans', seq: 1, rank: 0, t: 0, cat: 'user', define: [{ name: 'a' }], name: [0], start: [500], dur: [7] });
  assert.deepEqual([spans.offset(0), spans.extent], [0, { from: 500, to: 507 }]);
  spans.setClocks([{ ...info, clock: { offset: 300, error: 1 } }]);
  spans.setClocks(far);
  assert.deepEqual([spans.offset(0), spans.extent], [0, { from: 500, to: 507 }]);

  const samples = new Samples();
  samples.setClocks(far);
  samples.take({ kind: 'sample', seq: 2, rank: 0, t: 1_000, cpu: 50 });
  samples.take({ kind: 'sample', seq: 3, rank: 0, t: 2_000, cpu: 60 });
  assert.deepEqual(samples.of(0).map(([meter, { t }]) => [meter, t]), [['cpu', [1_000, 2_000]]]);
});
