/** What a profile must be like, whatever the schedule; and schedules whose waits are known. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import type { Run } from '../src/schema';
import { matching } from '../src/timeline/match';
import { profiling } from '../src/timeline/profile';
import type { Profile } from '../src/timeline/profilerows';
import { Stays } from '../src/timeline/stays';
import { MadeUp, called, runOf, seeded, toEnd, type Row } from './schedule';

function staysOf(times: ReadonlyArray<{ begin: number; end?: number }>): Stays {
  const stays = new Stays();
  times.forEach(({ begin, end }, rank) => {
    stays.take({ kind: 'status', rank, seq: 0, t: begin, state: 'running' });
    if (end !== undefined) {
      stays.take({ kind: 'status', rank, seq: 1, t: end, state: 'ok' });
    }
  });
  return stays;
}

function profileOf(source: MadeUp, run: Run, stays: Stays): Profile {
  return toEnd(profiling(source, run, stays, toEnd(matching(source, run))));
}

test('each instant of the wall is one of five, however the spans lie', () => {
  const random = seeded(5);
  const whole = (below: number): number => Math.floor(random() * below);
  for (let round = 0; round < 300; round++) {
    const size = 1 + whole(6);
    const source = new MadeUp();
    const row = (name: Row['name']): Row => ({ name, start: whole(5_000) - 200, dur: whole(4) ? whole(600) : 0 });
    for (let rank = 0; rank < size; rank++) {
      for (let i = whole(20); i > 0; i--) {
        const library = whole(3) ? 'dist' : 'hvd.tensorflow';
        source.add(rank, 'collective', row(called('allreduce', `t${whole(3)}`, { library, bytes: whole(99) })));
        source.add(rank, ['data', 'wait', 'op'][whole(3)], row({ name: 'x' }));
      }
    }
    const times = Array.from({ length: size }, () => ({ begin: whole(2_000), end: whole(6_000) }));
    // Some go on, some are imported.
    const known = whole(4) === 0 ? [] : times.map(({ begin, end }) => (whole(5) ? { begin, end } : { begin }));
    const profile = profileOf(source, runOf(size), staysOf(known));
    assert.equal(profile.ranks.length, size);
    for (const { rank, compute, data, waiting, exposed, idle, communication } of profile.ranks) {
      const parts = [compute, data, waiting, exposed, idle];
      assert.equal(parts.reduce((a, b) => a + b, 0), profile.wall, `round ${round}, rank ${rank}`);
      assert.ok(parts.every(part => part >= 0 && Number.isInteger(part)));
      assert.ok(communication >= exposed && communication <= profile.wall - idle);
    }
    for (const { time, wait, transfer } of profile.kinds) {
      assert.ok(time <= profile.wall && wait <= time && transfer <= time && time <= wait + transfer + 1);
    }
    assert.ok(profile.stragglers.every(({ cost, last, of }) => cost <= profile.wall && last <= of));
  }
});

test('a schedule gives back what it was made of', () => {
  const random = seeded(6);
  const whole = (below: number): number => Math.floor(random() * below);
  for (let round = 0; round < 60; round++) {
    const size = 2 + whole(7);
    const steps = 1 + whole(30);
    const source = new MadeUp();
    const begin = whole(1_000);
    const truth = Array.from({ length: size }, () => ({ compute: 0, data: 0, waiting: 0, exposed: 0, idle: 0 }));
    const late = new Map<number, number>();
    let now = begin;
    for (let step = 0; step < steps; step++) {
      const loads = truth.map(() => whole(3_000));
      const computes = truth.map(() => 1 + whole(9_000));
      const arrivals = truth.map((_, rank) => now + loads[rank] + computes[rank]);
      const last = Math.max(...arrivals);
      const end = last + 1 + whole(2_000);
      const name = called('allreduce', `grad.${step % 3}`);
      truth.forEach((one, rank) => {
        const start = arrivals[rank];
        source.add(rank, 'data', { name: { name: 'load' }, start: now, dur: loads[rank] });
        source.add(rank, 'collective', { name, start, dur: end - start });
        source.add(rank, 'wait', { name: { name: 'hvd.allreduce' }, start, dur: end - start });
        one.data += loads[rank];
        one.compute += computes[rank];
        one.waiting += last - start;
        one.exposed += end - last;
      });
      const who = arrivals.indexOf(last);
      const others = arrivals.filter((_, rank) => rank !== who).sort((a, b) => a - b);
      const middle = Math.floor((others[(others.length - 1) >> 1] + others[others.length >> 1]) / 2);
      late.set(who, (late.get(who) ?? 0) + last - middle);
      now = end;
    }
    const ends = truth.map(one => {
      const more = whole(500);
      one.compute += more;
      return now + more;
    });
    truth.forEach((one, rank) => (one.idle = Math.max(...ends) - ends[rank]));
    const profile = profileOf(source, runOf(size), staysOf(ends.map(end => ({ begin, end }))));
    const seen = profile.ranks.map(({ compute, data, waiting, exposed, idle }) => ({ compute, data, waiting, exposed, idle }));
    assert.deepEqual(seen, truth);
    const costs = profile.stragglers.map(({ rank, cost }) => [rank, cost]);
    assert.deepEqual(new Map(costs as Array<[number, number]>), new Map([...late].filter(([, cost]) => cost > 0)));
    assert.equal(profile.kinds[0].calls, steps);
  }
});
