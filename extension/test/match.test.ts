import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { matching, median } from '../src/timeline/match';
import type { Columns, SpanSource } from '../src/timeline/spans';
import { MadeUp, called, match, runOf, seeded, toEnd } from './schedule';

const grad = called('allreduce', 'grad.1');

test('who came last, by how much, and who was spared', () => {
  const source = new MadeUp()
    .add(0, 'collective', { name: grad, start: 100, dur: 950 })
    .add(1, 'collective', { name: grad, start: 1000, dur: 55 })
    .add(2, 'collective', { name: grad, start: 140, dur: 900 });
  const [one, ...more] = match(source, runOf(3));
  assert.equal(more.length, 0);
  assert.deepEqual(one, {
    op: 'allreduce', tensor: 'grad.1', library: 'hvd.torch', group: '', n: 0,
    ranks: [0, 1, 2], starts: [100, 1000, 140], ends: [1050, 1055, 1040],
    last: 1000, straggler: 1, spread: 900, cost: 880, absent: [], givenUp: []
  });
});

test('the n-th of a key belongs to the n-th of the others, whatever else lies between', () => {
  const other = called('allreduce', 'grad.2');
  const source = new MadeUp()
    .add(0, 'collective', { name: grad, start: 30, dur: 1 }, { name: grad, start: 10, dur: 1 }, { name: other, start: 20, dur: 1 })
    .add(1, 'collective', { name: other, start: 5, dur: 1 }, { name: grad, start: 11, dur: 1 }, { name: grad, start: 50, dur: 1 });
  const seen = match(source, runOf(2)).map(({ tensor, n, starts }) => [tensor, n, ...starts]);
  assert.deepEqual(seen, [['grad.2', 0, 20, 5], ['grad.1', 0, 10, 11], ['grad.1', 1, 30, 50]]);
});

test('library, group, op and tensor tell collectives apart', () => {
  const names = [
    grad,
    called('allreduce', 'grad.1', { library: 'dist' }),
    called('allreduce', 'grad.1', { group: 'even' }),
    called('broadcast', 'grad.1'),
    called('allreduce', '#2')
  ];
  const source = new MadeUp();
  for (const rank of [0, 1]) {
    source.add(rank, 'collective', ...names.map((name, i) => ({ name, start: 10 * i + rank, dur: 5 })));
  }
  const found = match(source, runOf(2));
  assert.equal(found.length, names.length);
  assert.ok(found.every(({ ranks, n }) => ranks.length === 2 && n === 0));
});

test('absent are those that are expected: of the group, or of the run', () => {
  const inGroup = called('allreduce', 'x', { group: 'g', ranks: [3, 1] });
  const source = new MadeUp()
    .add(0, 'collective', { name: grad, start: 1, dur: 1 })
    .add(1, 'collective', { name: grad, start: 2, dur: 1 }, { name: inGroup, start: 5, dur: 1 })
    // Whoever comes unexpected does not stand in for who stays away.
    .add(2, 'collective', { name: inGroup, start: 6, dur: 1 });
  assert.deepEqual(match(source, runOf(4)).map(({ absent }) => absent), [[2, 3], [3]]);
});

test('at the same moment the lowest rank is the last; alone it costs nothing', () => {
  const source = new MadeUp()
    .add(2, 'collective', { name: grad, start: 7, dur: 1 }, { name: grad, start: 70, dur: 1 })
    .add(1, 'collective', { name: grad, start: 7, dur: 1 });
  const [both, alone] = match(source, runOf(3));
  assert.deepEqual([both.straggler, both.spread, both.cost], [1, 0, 0]);
  assert.deepEqual([alone.straggler, alone.spread, alone.cost, alone.absent], [2, 0, 0, [0, 1]]);
});

test('nothing to match', () => {
  assert.deepEqual(match(new MadeUp(), runOf(2)), []);
});

test('the median is that of the sorted values, rounded down', () => {
  const random = seeded(1);
  for (let size = 1; size < 40; size++) {
    const values = Float64Array.from({ length: size }, () => Math.floor(random() * 30) - 15);
    const sorted = [...values].sort((a, b) => a - b);
    const middle = (sorted[(size - 1) >> 1] + sorted[size >> 1]) / 2;
    assert.equal(median(values), Math.floor(middle));
  }
});

test('each span is told which collective it is of', () => {
  const random = seeded(2);
  const source = new MadeUp();
  for (let rank = 0; rank < 4; rank++) {
    for (let i = 0; i < 200; i++) {
      const start = i * 100 + Math.floor(random() * 300);
      source.add(rank, 'collective', { name: called('allreduce', `t${i % 7}`), start, dur: 10 });
    }
  }
  const { collectives, of } = toEnd(matching(source, runOf(4)));
  for (const rank of source.ranks) {
    const { start } = source.columns(rank, 'collective');
    of.get(rank)!.forEach((at, i) => {
      const one = collectives[at];
      assert.equal(one.starts[one.ranks.indexOf(rank)], start[i]);
    });
  }
  const firsts = collectives.map(({ starts }) => Math.min(...starts));
  assert.deepEqual(firsts, [...firsts].sort((a, b) => a - b));
});

/** The same columns for many ranks, without rows. */
function many(ranks: number, count: number, names: number): SpanSource {
  const random = seeded(3);
  const columns: Columns[] = Array.from({ length: ranks }, () => ({
    start: Float64Array.from({ length: count }, (_, i) => i * 1000 + Math.floor(random() * 900)),
    dur: new Float64Array(count).fill(1000),
    name: Uint32Array.from({ length: count }, (_, i) => i % names),
    length: count
  }));
  const table = Array.from({ length: names }, (_, i) => called('allreduce', `grad.${i}`));
  return {
    ranks: columns.map((_, rank) => rank),
    cats: () => ['collective'],
    columns: rank => columns[rank],
    name: (_, number) => table[number],
    version: 1,
    dropped: new Map()
  };
}

test('work grows as the spans do', () => {
  const time = (count: number): number => {
    const source = many(16, count, 50);
    const begin = used();
    assert.equal(match(source, runOf(16)).length, count);
    return used() - begin;
  };
  time(2_000);
  const small = Math.min(time(3_000), time(3_000), time(3_000));
  const large = Math.min(time(30_000), time(30_000));
  // Ten times as much; a quadratic one would take a hundred times as long.
  assert.ok(large < 40 * small, `${small.toFixed(1)} ms, ${large.toFixed(1)} ms`);
});

/** Milliseconds of processor time that this process has used: others may be busy as well. */
function used(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
