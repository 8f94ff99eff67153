/** Prompts of ranks, and the reader's answers. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import type { Api } from '../src/api';
import { RunModel } from '../src/run/model';
import { askingWords, Prompts } from '../src/run/prompts';
import type { Prompt, Run } from '../src/schema';

function command(rank: number, number = 1, line = 5): Prompt {
  return { rank, number, kind: 'debugger', text: 'ipdb> ', since: 0, place: `cell line ${line}` };
}

const ASKS_NAME: Prompt = { rank: 2, number: 1, kind: 'input', text: 'name? ', since: 0, place: 'cell line 1' };

function run(...prompts: Prompt[]): Run {
  const ranks = [0, 1, 2, 3].map(rank => ({ rank, host: 'here', pid: 1, device: 'cpu' }));
  return { version: 1, id: 'r', state: 'running', start: 0, cluster: 'local', size: 4, ranks, prompts };
}

/** A model and its prompts; answers are noted in `given`, or refused. `later` moves the clock. */
function answered(first: Run, refuse = ''): { model: RunModel; prompts: Prompts; given: string[]; later: (ms: number) => void } {
  const given: string[] = [];
  const api = {
    answer: (id: string, text: string, to: Prompt[]) => {
      given.push(`${id} ${text} ${to.map(({ rank, number }) => `${rank}:${number}`).join()}`);
      return refuse ? Promise.reject(new Error(refuse)) : Promise.resolve();
    }
  };
  const model = new RunModel(first);
  let now = 0;
  const prompts = new Prompts(model, api as unknown as Api, () => now);
  return { model, prompts, given, later: ms => (now += ms) };
}

test('an answer goes once to all ranks with the same prompt', async () => {
  const { prompts, given } = answered(run(command(0), command(1, 7), ASKS_NAME));
  await prompts.answer('n');
  assert.deepEqual(prompts.asked.map(({ rank }) => rank), [2]);
  await prompts.answer('Ada');
  await prompts.answer('too much');
  assert.deepEqual(given, ['r n 0:1,1:7', 'r Ada 2:1']);
});

test('a chosen rank is answered alone, and stays chosen while it runs', async () => {
  const { model, prompts, given } = answered(run(command(0), command(1)));
  prompts.choose(1);
  await prompts.answer('s');
  await prompts.answer('s');
  assert.deepEqual([prompts.targets, prompts.choice, prompts.isOpen], [[], 1, true]);
  model.run = run(command(0), command(1, 2));
  await prompts.answer('c');
  prompts.choose(null);
  await prompts.answer('w');
  assert.deepEqual(given, ['r s 1:1', 'r c 1:2', 'r w 0:1']);
});

test('a chosen rank that no longer asks is away; no other gets its answer', async () => {
  const { model, prompts, given, later } = answered(run(command(0), command(1)));
  prompts.choose(1);
  await prompts.answer('c');
  model.run = run(command(0));
  assert.equal(prompts.isAway, false);
  later(5_000);
  assert.equal(prompts.isAway, true);
  await prompts.answer('n');
  assert.deepEqual(given, ['r c 1:1']);
  prompts.choose(null);
  assert.equal(prompts.isAway, false);
});

test('text typed for one prompt does not answer one that appears meanwhile', async () => {
  const password: Prompt = { ...ASKS_NAME, rank: 3, kind: 'password', text: 'Password: ' };
  const { model, prompts, given } = answered(run(password));
  prompts.typing('s');
  model.run = run(command(0), password);
  prompts.typing('s3cret');
  assert.deepEqual(prompts.targets, [password]);
  await prompts.answer('s3cret');
  await prompts.answer('n');
  assert.deepEqual(given, ['r s3cret 3:1', 'r n 0:1']);
  // A prompt that is gone cannot be answered, and an empty line belongs to the first prompt.
  model.run = run(ASKS_NAME);
  prompts.typing('A');
  model.run = run(command(0, 2));
  assert.deepEqual(prompts.targets, []);
  model.run = run(command(0, 2), ASKS_NAME);
  assert.deepEqual(prompts.targets, [ASKS_NAME]);
  prompts.typing('');
  assert.deepEqual(prompts.targets, [command(0, 2)]);
});

test('text typed for a prompt that closes is not sent to another one', async () => {
  const other: Prompt = { ...ASKS_NAME, rank: 3, text: 'age? ' };
  const { model, prompts, given } = answered(run(ASKS_NAME, other));
  prompts.typing('A');
  model.run = run(other); // the first one was answered elsewhere
  prompts.typing('Ad');
  assert.deepEqual([prompts.targets, prompts.missed], [[], ASKS_NAME]);
  await prompts.answer('Ada');
  assert.deepEqual(given, []);
  prompts.typing('');
  assert.deepEqual([prompts.targets, prompts.missed], [[other], undefined]);
  await prompts.answer('36');
  assert.deepEqual(given, ['r 36 3:1']);
});

test('text typed for a chosen rank’s earlier prompt is not sent to its next one', () => {
  const { model, prompts, later } = answered(run(ASKS_NAME, command(0)));
  prompts.choose(2);
  prompts.typing('A');
  const next: Prompt = { ...ASKS_NAME, number: 2, text: 'age? ' };
  model.run = run(next, command(0));
  later(5_000);
  assert.deepEqual([prompts.targets, prompts.missed, prompts.isAway], [[], ASKS_NAME, false]);
  prompts.choose(2, 'A');
  assert.deepEqual([prompts.targets, prompts.missed], [[next], undefined]);
});

test('the ranks to answer can be chosen after text was typed', async () => {
  const { model, prompts, given } = answered(run(ASKS_NAME));
  prompts.typing('A');
  model.run = run(command(0), ASKS_NAME);
  prompts.choose(0, 'A');
  prompts.choose(null, 'A');
  model.run = run(command(0), command(1), ASKS_NAME);
  await prompts.answer('Ada');
  assert.deepEqual(given, ['r Ada 0:1,1:1']);
});

test('the prompt line stays open briefly until the debugger asks again', async () => {
  const { model, prompts, later } = answered(run(command(0)));
  await prompts.answer('n');
  model.run = run();
  later(500);
  assert.equal(prompts.isOpen, true);
  later(5_000);
  assert.equal(prompts.isOpen, false);
  model.run = run(command(0, 2));
  assert.equal(prompts.isOpen, true);
  model.run = { ...run(command(0, 2)), state: 'done' };
  assert.equal(prompts.isOpen, false);
});

test('a refused answer shows the reason and can be sent again', async () => {
  const { prompts, given } = answered(run(command(0)), 'that was answered already');
  await prompts.answer('n');
  assert.equal(prompts.trouble, 'that was answered already');
  await prompts.answer('n');
  assert.equal(given.length, 2);
});

test('a restarted rank, which numbers its prompts from 1 again, is answered', async () => {
  const { model, prompts, given } = answered(run(command(0)));
  await prompts.answer('c');
  assert.deepEqual(prompts.asked, []);
  model.run = run({ ...command(0), since: 9_000_000 });
  assert.deepEqual([prompts.asked.length, prompts.isOpen], [1, true]);
  await prompts.answer('c');
  assert.deepEqual([prompts.asked, given.length], [[], 2]);
});

test('the history recalls earlier answers but no passwords', async () => {
  const { model, prompts } = answered(run({ ...ASKS_NAME, kind: 'password' }));
  await prompts.answer('s3cret');
  model.run = run(command(0, 2));
  await prompts.answer('p loss');
  model.run = run(command(0, 3));
  await prompts.answer('p loss');
  model.run = run(command(0, 4));
  await prompts.answer('n');
  assert.equal(prompts.recall(-1, 'half'), 'n');
  assert.equal(prompts.recall(-1, 'n'), 'p loss');
  assert.notEqual(prompts.recall(-1, 'p loss'), 's3cret');
  let shown = '';
  for (let i = 0; i < 5; i++) {
    shown = prompts.recall(1, shown);
  }
  assert.equal(shown, 'half');
});

test('the history includes answers given under other cells', async () => {
  const { prompts } = answered(run(command(0)));
  const other = answered(run(command(0)));
  await other.prompts.answer('p step');
  assert.equal(prompts.recall(-1, 'half'), 'p step');
  assert.equal(prompts.recall(1, 'p step'), 'half');
});

test('waiting ranks are described in words', () => {
  assert.equal(
    askingWords([command(0), command(1), command(3, 1, 9), ASKS_NAME]),
    'ranks 0–1 are in the debugger at cell line 5; rank 3 is in the debugger at cell line 9; ' +
      'rank 2 waits for input at cell line 1'
  );
  assert.equal(askingWords([{ ...command(0), place: 'train.py:12' }]), 'rank 0 is in the debugger at train.py:12');
});

test('Tab completes the common prefix that the first asking rank finds', async () => {
  const asked: string[] = [];
  const found: { [line: string]: { begin: number; matches: string[] } } = {
    'p lo': { begin: 2, matches: ['losses', 'loss_of'] },
    'p le': { begin: 2, matches: ['len'] },
    'p x': { begin: 2, matches: [] }
  };
  const api = {
    complete: (id: string, line: string, { rank, number }: Prompt) => {
      asked.push(`${id} ${line} ${rank}:${number}`);
      return line in found ? Promise.resolve(found[line]) : Promise.reject(new Error('gone'));
    }
  };
  const prompts = new Prompts(new RunModel(run(command(1, 7), command(2))), api as unknown as Api);
  assert.deepEqual(await prompts.complete('p lo'), { line: 'p loss', matches: ['losses', 'loss_of'] });
  assert.deepEqual(await prompts.complete('p le'), { line: 'p len', matches: ['len'] });
  assert.deepEqual(await prompts.complete('p x'), { line: 'p x', matches: [] });
  assert.deepEqual(await prompts.complete('p gone'), { line: 'p gone', matches: [] });
  assert.equal(asked[0], 'r p lo 1:7');
  const name = new Prompts(new RunModel(run(ASKS_NAME)), api as unknown as Api);
  assert.deepEqual(await name.complete('p lo'), { line: 'p lo', matches: [] });
});
