/** The golden traces, read as the view reads them: collectives, profile and diagnosis. */
import { strict as assert } from 'node:assert';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { RunModel } from '../src/run/model';
import type { Run } from '../src/schema';
import { matching, type Collective } from '../src/timeline/match';
import { profiling } from '../src/timeline/profile';
import type { Profile } from '../src/timeline/profilerows';
import { toEnd } from './schedule';

const TRACES = join(__dirname, '../../../tests/support/traces');

interface Expected {
  collectives: Array<Omit<Collective, 'starts' | 'givenUp'> & { arrivals: number[]; given_up: number[] }>;
  profile: Profile;
}

for (const name of readdirSync(TRACES).filter(name => !name.includes('.'))) {
  const file = (part: string): string => readFileSync(join(TRACES, name, part), 'utf8');

  test(`the collectives and the profile of ${name}`, () => {
    const model = new RunModel(JSON.parse(file('run.json')) as Run);
    [...model.take(file('events.jsonl'))];
    model.complete();
    const found = toEnd(matching(model.spans, model.run));
    const expected = JSON.parse(file('expected.json')) as Expected;
    const seen = found.collectives.map(({ starts, givenUp, ...one }) => ({ ...one, arrivals: starts, given_up: givenUp }));
    assert.deepEqual(seen, expected.collectives);
    const profile = toEnd(profiling(model.spans, model.run, model.stays, found));
    assert.deepEqual(rounded(profile), rounded(expected.profile));
  });
}

/** Numbers that are no whole ones to nine digits. */
function rounded(profile: Profile): Profile {
  const round = (value: number | null): number | null => (value === null ? null : Number(value.toPrecision(9)));
  const kinds = profile.kinds.map(kind => ({ ...kind, bytes: round(kind.bytes), bandwidth: round(kind.bandwidth) }));
  return { ...profile, kinds };
}
