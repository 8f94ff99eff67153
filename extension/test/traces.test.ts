/** The golden traces, read as the view reads them: the collectives are those that Python finds. */
import { strict as assert } from 'node:assert';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { RunModel } from '../src/run/model';
import type { Run } from '../src/schema';
import { matching, type Collective } from '../src/timeline/match';
import { toEnd } from './schedule';

const TRACES = join(__dirname, '../../../tests/support/traces');

interface Expected {
  collectives: Array<Omit<Collective, 'starts' | 'givenUp'> & { arrivals: number[]; given_up: number[] }>;
}

for (const name of readdirSync(TRACES).filter(name => !name.includes('.'))) {
  const file = (part: string): string => readFileSync(join(TRACES, name, part), 'utf8');

  test(`the collectives of ${name}`, () => {
    const model = new RunModel(JSON.parse(file('run.json')) as Run);
    [...model.take(file('events.jsonl'))];
    model.complete();
    const found = toEnd(matching(model.spans, model.run));
    const expected = JSON.parse(file('expected.json')) as Expected;
    const seen = found.collectives.map(({ starts, givenUp, ...one }) => ({ ...one, arrivals: starts, given_up: givenUp }));
    assert.deepEqual(seen, expected.collectives);
  });
}
