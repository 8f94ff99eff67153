/** The phases of a run as the profile shows them, and what its timeline shows first. */
import { strict as assert } from 'node:assert';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import type { Profile } from '../src/schema';
import { Look } from '../src/timeline/look';
import { firstSteps, loopFacts, partsOf } from '../src/timeline/phases';
import { slowest } from '../src/words';

function profileOf(trace: string): Profile {
  const file = join(__dirname, '../../../tests/support/traces', trace, 'expected.json');
  const { profile } = JSON.parse(readFileSync(file, 'utf8')) as { profile: Profile };
  return { ...profile, named: profile.loop?.named ?? [] };
}

test('the loop comes first, then the other phases, then all of the run', () => {
  const parts = partsOf(profileOf('imports'));
  assert.deepEqual(parts.map(({ title }) => title), ['steps 3–40', 'start-up', 'warm-up', 'rest', 'whole run']);
  const [loop, ...others] = parts.map(({ rows }) => rows.wall);
  assert.equal(loop + others[0] + others[1] + others[2], others[3]);
});

test('a run without a loop has one part, and so has a profile of an earlier version', () => {
  assert.deepEqual(partsOf(profileOf('broken')).map(({ key }) => key), ['run']);
  const earlier = { ...profileOf('imports') };
  delete earlier.loop;
  delete earlier.phases;
  assert.deepEqual(partsOf(earlier).map(({ key }) => key), ['run']);
  assert.equal(firstSteps(earlier), null);
});

test('facts of a loop are its speed and what is not counted in it', () => {
  assert.deepEqual(loopFacts(profileOf('imports').loop!).filter(Boolean), [
    '38 steps/s', '26.3 ms per step', '4,859 samples/s', 'a step ends with SGD.step in line 3'
  ]);
  assert.deepEqual(loopFacts(profileOf('validation').loop!).filter(Boolean), [
    '71.4 steps/s', '14.0 ms per step', 'a step ends with Adam.step in line 4',
    'not counting 2 steps in which all ranks also did something else', 'ranks did between 29 and 30 steps',
    'another loop, with SGD.step in line 9: 24 steps in 336 ms'
  ]);
});

test('the header states the slowest rank’s cost as a share of a step', () => {
  assert.equal(slowest(profileOf('imports')), 'slowest: rank 2, +61 % of a step');
  assert.equal(slowest(profileOf('turns')), '');
});

test('the timeline opens at a few steps of a loop if they are a small part', () => {
  const profile = profileOf('imports');
  const { begin, end } = profile.phases!.find(({ phase }) => phase === 'loop')!;
  const steps = firstSteps(profile)!;
  assert.equal(steps.from, begin);
  assert.ok(steps.to < end && Math.abs((steps.to - steps.from) / 5 - 26_345) < 100);
  assert.equal(firstSteps(profileOf('overlap')), null);
  assert.equal(firstSteps(null), null);
});

test('the first range stays while the run is read, and fit shows everything', () => {
  const look = new Look();
  look.setExtent({ from: 0, to: 1e6 }, 1e6);
  look.begin({ from: 400_000, to: 500_000 });
  assert.ok(look.range.from > 390_000 && look.range.to < 510_000 && !look.isFitted && look.isFirst);
  look.begin({ from: 0, to: 10 });
  assert.ok(look.range.from > 390_000);
  look.setExtent({ from: 0, to: 2e6 }, 2e6);
  assert.ok(look.range.from > 390_000 && look.range.to < 510_000);
  look.fit(null);
  assert.deepEqual(look.range, look.bounds);
  assert.equal(look.isFirst, false);
  look.begin({ from: 400_000, to: 500_000 });
  assert.deepEqual(look.range, look.bounds);
});
