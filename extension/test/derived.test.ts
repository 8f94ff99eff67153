import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { Derived } from '../src/run/derived';

class Source {
  amount = 0;
  isOver = false;
  made = 0;
  failure = '';

  key = (): string => String(this.amount);
  isComplete = (): boolean => this.isOver;
  make = async (): Promise<number> => {
    this.made += 1;
    await Promise.resolve();
    if (this.failure) {
      throw new Error(this.failure);
    }
    return this.amount;
  };
}

function next(derived: Derived<number>): Promise<void> {
  return new Promise(resolve => {
    const listen = (): void => {
      derived.changed.disconnect(listen);
      resolve();
    };
    derived.changed.connect(listen);
  });
}

test('a value is derived on request, and again only if its source has grown', async () => {
  const source = new Source();
  const derived = new Derived(source);
  source.amount = 1;
  assert.equal(derived.value, null);
  derived.refresh();
  derived.refresh();
  await next(derived);
  assert.equal(derived.value, 1);
  assert.ok(derived.isUpToDate);
  derived.refresh();
  assert.equal(source.made, 1);
  derived.forget();
  assert.equal(derived.value, null);
  assert.ok(!derived.isUpToDate);
});

test('a growing source is derived after a pause, a complete one at once', async () => {
  const source = new Source();
  const derived = new Derived(source);
  source.amount = 1;
  derived.refresh();
  await next(derived);
  const begin = performance.now();
  source.amount = 2;
  derived.refresh();
  derived.refresh();
  // It pauses, and signals the end of the pause.
  await next(derived);
  const rest = performance.now() - begin;
  assert.ok(rest > 500);
  assert.equal(derived.value, 1);
  derived.refresh();
  await next(derived);
  assert.equal(derived.value, 2);
  source.amount = 3;
  source.isOver = true;
  const over = performance.now();
  derived.refresh();
  await next(derived);
  assert.ok(performance.now() - over < rest);
  assert.equal(derived.value, 3);
});

test('a value that is forgotten while it is derived is dropped', async () => {
  const derived = new Derived(new Source());
  derived.refresh();
  derived.forget();
  await next(derived);
  assert.equal(derived.value, null);
});

test('a failure is reported, keeps the earlier value and is not retried at once', async () => {
  const source = new Source();
  const derived = new Derived(source);
  source.amount = 1;
  derived.refresh();
  await next(derived);
  source.amount = 2;
  source.isOver = true;
  source.failure = 'the Jupyter server does not respond';
  derived.refresh();
  await next(derived);
  assert.equal(derived.trouble, 'the Jupyter server does not respond');
  assert.equal(derived.value, 1);
  assert.ok(!derived.isUpToDate);
  derived.refresh();
  assert.equal(source.made, 2);
  derived.forget();
  assert.equal(derived.trouble, '');
});
