import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { Gathering, intersection, lengthOf, union, without, type Intervals } from '../src/timeline/intervals';
import { seeded } from './schedule';

const WIDE = 60;

/** Random intervals, and the instants in them. */
function some(random: () => number): { made: Intervals; instants: Set<number> } {
  const whole = (below: number): number => Math.floor(random() * below);
  const [from, to] = [whole(10), WIDE - whole(10)];
  const gathering = new Gathering(from, to);
  const instants = new Set<number>();
  for (let i = whole(200) < 5 ? 0 : whole(12); i > 0; i--) {
    const begin = whole(WIDE + 10) - 5;
    const end = begin + whole(8) - 1;
    gathering.add(begin, end);
    for (let t = Math.max(begin, from); t < Math.min(end, to); t++) {
      instants.add(t);
    }
  }
  return { made: gathering.union(), instants };
}

function instantsOf(intervals: Intervals): number[] {
  const out: number[] = [];
  for (let i = 0; i < intervals.length; i += 2) {
    for (let t = intervals[i]; t < intervals[i + 1]; t++) {
      out.push(t);
    }
  }
  return out;
}

test('unions, intersections and differences have the instants they should', () => {
  const random = seeded(4);
  const sorted = (instants: Iterable<number>): number[] => [...instants].sort((a, b) => a - b);
  for (let round = 0; round < 2_000; round++) {
    const [a, b] = [some(random), some(random)];
    assert.deepEqual(instantsOf(a.made), sorted(a.instants));
    assert.deepEqual(instantsOf(union(a.made, b.made)), sorted(new Set([...a.instants, ...b.instants])));
    assert.deepEqual(
      instantsOf(intersection(a.made, b.made)),
      sorted([...a.instants].filter(t => b.instants.has(t)))
    );
    const difference = without(a.made, b.made);
    assert.deepEqual(instantsOf(difference), sorted([...a.instants].filter(t => !b.instants.has(t))));
    assert.equal(lengthOf(difference), instantsOf(difference).length);
    for (const edges of [a.made, difference, union(a.made, b.made)]) {
      assert.ok(edges.every((edge, i) => i === 0 || edge > edges[i - 1]), 'ascending, apart');
    }
  }
});
