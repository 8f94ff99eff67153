import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import type { Run } from '../src/schema';
import { Derivation } from '../src/timeline/derivation';
import { Stays } from '../src/timeline/stays';
import { MadeUp, called, runOf } from './schedule';

class Material {
  run: Run = runOf(2);
  spans = new MadeUp();
  stays = new Stays();
  isComplete = false;

  add(start: number): void {
    [0, 1].forEach(rank =>
      this.spans.add(rank, 'collective', { name: called('allreduce', 'x'), start: start + 10 * rank, dur: 50 })
    );
  }
}

function calls({ profile }: Derivation): number | null {
  return profile ? profile.kinds[0].calls : null;
}

function next(derivation: Derivation): Promise<void> {
  return new Promise(resolve => {
    const listen = (): void => {
      derivation.changed.disconnect(listen);
      resolve();
    };
    derivation.changed.connect(listen);
  });
}

test('derived when asked, and again only when there is more', async () => {
  const material = new Material();
  const derivation = new Derivation(material);
  material.add(100);
  assert.equal(calls(derivation), null);
  derivation.refresh();
  await next(derivation);
  const first = derivation.profile;
  assert.equal(calls(derivation), 1);
  assert.ok(derivation.isUpToDate);
  derivation.refresh();
  assert.equal(derivation.profile, first);
  derivation.forget();
  assert.equal(calls(derivation), null);
});

test('a run that goes on is derived again after a rest, and at once when it is over', async () => {
  const material = new Material();
  const derivation = new Derivation(material);
  material.add(100);
  derivation.refresh();
  await next(derivation);
  const begin = performance.now();
  material.add(200);
  derivation.refresh();
  derivation.refresh();
  // It rests, and says when it has.
  await next(derivation);
  const rest = performance.now() - begin;
  assert.ok(rest > 500);
  assert.equal(calls(derivation), 1);
  derivation.refresh();
  await next(derivation);
  assert.equal(calls(derivation), 2);
  material.add(300);
  material.isComplete = true;
  const over = performance.now();
  derivation.refresh();
  await next(derivation);
  assert.ok(performance.now() - over < rest);
  assert.equal(calls(derivation), 3);
});

test('what was let go of meanwhile is not kept', async () => {
  const material = new Material();
  const derivation = new Derivation(material);
  material.add(100);
  derivation.refresh();
  material.spans = new MadeUp();
  derivation.forget();
  await next(derivation);
  assert.equal(calls(derivation), null);
});
