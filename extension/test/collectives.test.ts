/** The golden traces in the view: the server's answer gives the expected collectives. */
import { strict as assert } from 'node:assert';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { RunModel } from '../src/run/model';
import { runSlice } from '../src/run/slices';
import type { Run } from '../src/schema';
import { collectiveOf } from '../src/view/timeline/painter';
import { Collectives, type Collective, type CollectivesAnswer, type CollectiveSpans } from '../src/timeline/collectives';

const TRACES = join(__dirname, '../../../tests/support/traces');

interface Expected {
  collectives: Array<Omit<Collective, 'starts' | 'givenUp'> & { arrivals: number[]; given_up: number[] }>;
}

function file(name: string, part: string): string {
  return readFileSync(join(TRACES, name, part), 'utf8');
}

function read(name: string, lines = Infinity): RunModel {
  const model = new RunModel(JSON.parse(file(name, 'run.json')) as Run);
  [...model.take(file(name, 'events.jsonl').split(/(?<=\n)/).slice(0, lines).join(''))];
  return model;
}

function told(name: string): CollectivesAnswer {
  return JSON.parse(file(name, 'collectives.json')) as CollectivesAnswer;
}

function matched(answer: CollectivesAnswer, spans: CollectiveSpans): Collectives | null {
  const last = runSlice(Collectives.of(answer, spans), Infinity);
  assert.ok(last.done);
  return last.value;
}

function all(found: Collectives): Collective[] {
  return Array.from({ length: found.length }, (_, i) => found.at(i));
}

for (const name of readdirSync(TRACES).filter(name => !name.includes('.'))) {
  test(`${name}: spans are matched to the expected collectives`, () => {
    const { spans } = read(name);
    const found = matched(told(name), spans)!;
    const { collectives } = JSON.parse(file(name, 'expected.json')) as Expected;
    const seen = all(found).map(({ starts, cuts, givenUp, ...one }) => {
      assert.equal(cuts.length, starts.length);
      return { ...one, arrivals: starts, given_up: givenUp };
    });
    assert.deepEqual(seen, collectives);
    for (const { rank, doubt } of told(name).calls) {
      const { start, dur, length } = spans.columns(rank, 'collective');
      for (let i = 0; i < length; i++) {
        const number = found.of(rank, i);
        const one = found.at(number);
        const at = one.ranks.indexOf(rank);
        const end = start[i] + dur[i];
        const met = end + doubt < one.last ? start[i] : Math.min(one.last, end);
        const cut = one.givenUp.includes(rank) ? end : met;
        assert.deepEqual([one.starts[at], one.cuts[at], one.ends[at]], [start[i], cut, end]);
      }
    }
  });
}

test('collectives of a range began before its end and may reach into it', () => {
  const found = matched(told('straggler'), read('straggler').spans)!;
  const [first, , third] = all(found);
  assert.deepEqual(found.in({ from: -1e9, to: 1e12 }), [0, found.length]);
  assert.deepEqual(found.in({ from: -1e9, to: Math.min(...first.starts) }), [0, 0]);
  const extent = found.extentOf(2);
  assert.deepEqual([extent.from, extent.to], [Math.min(...third.starts), Math.max(...third.ends)]);
  assert.equal(found.in({ from: extent.to, to: 1e12 })[0], 2);
});

test('spans that the server’s answer does not cover are matched to no collective', () => {
  const calls = ({ spans }: RunModel): number =>
    spans.ranks.reduce((sum, rank) => sum + spans.columns(rank, 'collective').length, 0);
  const lines = file('straggler', 'events.jsonl').split('\n').length - 1;
  const fewer = Array.from({ length: lines }, (_, i) => read('straggler', i)).filter(model => calls(model) < calls(read('straggler')));
  assert.ok(fewer.length > 0);
  for (const { spans } of fewer) {
    assert.equal(matched(told('straggler'), spans), null);
  }
  // A later span belongs to no collective; an earlier span shifts the indices of the others.
  const model = read('straggler');
  const [rank] = model.spans.ranks;
  const lane = model.spans.columns(rank, 'collective');
  lane.reserve(2);
  lane.add(lane.reach + 10, 5, lane.name[0]);
  const found = matched(told('straggler'), model.spans)!;
  assert.ok(found.fits(rank, model.spans.columns(rank, 'collective')));
  assert.ok(found.of(rank, lane.length - 2) >= 0);
  assert.equal(found.of(rank, lane.length - 1), -1);
  const [first, compute] = [{ rank, cat: 'collective', i: 0 }, { rank, cat: 'compute', i: 0 }];
  assert.deepEqual(collectiveOf(first, found, model.spans), found.at(found.of(rank, 0)));
  assert.equal(collectiveOf(compute, found, model.spans), null);
  lane.add(lane.first - 10, 5, lane.name[0]);
  assert.ok(!found.fits(rank, model.spans.columns(rank, 'collective')));
  assert.equal(collectiveOf(first, found, model.spans), null, 'another span has its place now');
  assert.equal(matched(told('straggler'), model.spans), null);
});

test('matching is abandoned if spans change meanwhile', () => {
  const { spans } = read('straggler');
  const [rank] = spans.ranks;
  const lane = spans.columns(rank, 'collective');
  const steps = Collectives.of(told('straggler'), spans);
  assert.ok(!steps.next().done);
  lane.reserve(1);
  lane.add(lane.first - 10, 5, lane.name[0]);
  const last = runSlice(steps, Infinity);
  assert.deepEqual(last, { done: true, value: null });
});
