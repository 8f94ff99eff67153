/** Following a live run: its lines, and changes of its run.json. */
import { strict as assert } from 'node:assert';
import { EventEmitter } from 'node:events';
import { test } from 'node:test';

import { type Api, ApiError, type Chunk } from '../src/api';
import { follow } from '../src/run/follow';
import { RunModel } from '../src/run/model';
import type { Run } from '../src/schema';

const run: Run = {
  version: 1, id: 'r', state: 'running', start: 1, end: null, cluster: 'local', size: 1,
  ranks: [{ rank: 0, host: 'h', pid: 1, device: 'cpu' }]
};

function line(text: string): string {
  return `${JSON.stringify({ kind: 'log', rank: 0, seq: 0, t: 0, stream: 'stdout', text: `${text}\n` })}\n`;
}

/** A server that answers with these chunks in order; their `run` fields change run.json. */
function server(chunks: Array<Partial<Chunk> & { run?: Partial<Run> }>): { api: Api; asked: string[] } {
  const asked: string[] = [];
  let told: Run = run;
  let at = 0;
  const api = {
    run: () => {
      asked.push('run');
      return Promise.resolve(told);
    },
    events: (_: string, after: number, wait: number, changed: string): Promise<Chunk> => {
      asked.push(`after ${after} wait ${wait ? 'long' : 'no'} changed ${changed}`);
      const { run: next, ...chunk } = chunks.shift()!;
      told = { ...told, ...next };
      at += chunk.text?.length ?? 0;
      return Promise.resolve({ text: '', next: at, size: at, state: told.state, changed: 'a', ...chunk });
    }
  };
  return { api: api as unknown as Api, asked };
}

/** Let everything continue that does not wait for a timer. */
async function turn(): Promise<void> {
  for (let i = 0; i < 20; i++) {
    await Promise.resolve();
  }
}

test('a lost run is polled, and followed again when its writer returns', async t => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const model = new RunModel(run);
  const { api, asked } = server([
    { text: line('one'), run: { state: 'lost' } },
    { text: `${line('one')}${line('two')}`, run: { state: 'done', end: 5 } }
  ]);
  const reading = follow(model, api, new AbortController().signal);
  await turn();
  assert.deepEqual([model.isComplete, model.run.state, model.lineCount], [true, 'lost', 1]);
  t.mock.timers.tick(10_000);
  await turn();
  assert.equal(model.isComplete, true, 'it is lost still, and what is known of it stays');
  const looks = asked.length;
  const original = api.run.bind(api);
  api.run = async id => ({ ...(await original(id)), state: 'running' });
  t.mock.timers.tick(10_000);
  await Promise.resolve();
  api.run = original;
  await reading;
  assert.deepEqual([model.isComplete, model.run.state, model.lineCount], [true, 'done', 2]);
  assert.ok(asked.length > looks);
});

test('a run that has ended does not run again because the disk was too full for its end', async () => {
  const model = new RunModel({ ...run, state: 'done', end: 5 });
  const seen: string[] = [];
  model.changed.connect(({ run }) => seen.push(run.state));
  const { api } = server([
    { text: line('one') },
    { changed: 'b', text: line('two') },
    { changed: 'c', run: { state: 'done', end: 5 } }
  ]);
  await follow(model, api, new AbortController().signal);
  assert.deepEqual([...new Set(seen)], ['done']);
  assert.deepEqual([model.isComplete, model.lineCount], [true, 2]);
});

test('a lost run reports an unresponsive server until it answers', async t => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const model = new RunModel(run);
  const { api } = server([{ text: line('one'), run: { state: 'lost' } }]);
  const shown = new AbortController();
  const reading = follow(model, api, shown.signal);
  await turn();
  const { run: answer } = api;
  api.run = () => Promise.reject(new TypeError('network error'));
  t.mock.timers.tick(10_000);
  await turn();
  assert.notEqual(model.trouble, '');
  api.run = answer;
  t.mock.timers.tick(1_000);
  await turn();
  t.mock.timers.tick(10_000);
  await turn();
  assert.deepEqual([model.trouble, model.run.state, model.lineCount], ['', 'lost', 1]);
  assert.equal(EventEmitter.getEventListeners(shown.signal, 'abort').length, 1, 'rests that are over leave nothing');
  shown.abort();
  await reading;
});

test('run.json is fetched again only when it has changed', async () => {
  const hang = { since: 0, text: 'rank 0 waits', ranks: [] };
  const model = new RunModel(run);
  const seen: string[] = [];
  model.changed.connect(({ hang }) => seen.push(hang?.text ?? '-'));
  const { api, asked } = server([
    { text: line('one') },
    { text: line('two') },
    { changed: 'b', run: { hang } },
    { changed: 'b', text: line('three') },
    { changed: 'c', run: { hang: { ...hang, text: 'still' } } },
    { changed: 'd', run: { hang: null } },
    { changed: 'e', run: { state: 'done', end: 5 } }
  ]);
  await follow(model, api, new AbortController().signal);
  const size = [line('one'), line('two'), line('three')].map(text => text.length);
  const two = size[0] + size[1];
  assert.deepEqual(asked, [
    'run',
    'after 0 wait no changed ',
    'run', // the first answer may be older than this chunk
    `after ${size[0]} wait long changed a`,
    `after ${two} wait long changed a`,
    'run',
    `after ${two} wait long changed b`,
    `after ${two + size[2]} wait long changed b`,
    'run',
    `after ${two + size[2]} wait long changed c`,
    'run',
    `after ${two + size[2]} wait long changed d`,
    'run'
  ]);
  const texts = seen.filter((text, i) => text !== seen[i - 1]);
  assert.deepEqual(texts, ['-', 'rank 0 waits', 'still', '-']);
  assert.deepEqual([model.run.state, model.isComplete, model.lineCount], ['done', true, 3]);
});

test('a run is followed even if the server does not report changes', async () => {
  const model = new RunModel(run);
  const { api, asked } = server([
    { changed: '', text: line('one') },
    { changed: '', run: { state: 'failed' } }
  ]);
  await follow(model, api, new AbortController().signal);
  assert.deepEqual(asked.filter(each => each === 'run').length, 2);
  assert.deepEqual([model.run.state, model.isComplete], ['failed', true]);
});

test('a request whose answer breaks off is repeated', async () => {
  const model = new RunModel(run);
  const { api } = server([{ text: line('one') }, { text: line('two'), run: { state: 'done', end: 5 } }]);
  const { events } = api;
  let broken = 1;
  api.events = (...args) => (broken-- === 1 ? Promise.reject(new TypeError('network error')) : events(...args));
  const troubles: string[] = [];
  model.changed.connect(({ trouble }) => troubles.push(trouble));
  await follow(model, api, new AbortController().signal);
  assert.deepEqual([model.isComplete, model.lineCount, model.trouble], [true, 2, '']);
  assert.ok(troubles.some(words => words.includes('was cut off: retrying in 1 s')));
});

/** Begin to follow a live run whose record is missing; `appear` makes it readable, of a run that is done. */
async function withoutRecord(): Promise<{ model: RunModel; reading: Promise<void>; appear: () => void }> {
  const model = new RunModel(run);
  const { api } = server([{ text: line('one'), run: { state: 'done', end: 5 } }]);
  const { run: answer } = api;
  api.isThere = () => Promise.resolve(true);
  api.run = () => Promise.reject(new ApiError("no record 'r'", 404));
  const reading = follow(model, api, new AbortController().signal);
  await turn();
  assert.match(model.refusal, /no record 'r'/);
  return { model, reading, appear: () => void (api.run = answer) };
}

test('a missing record of a live run is polled until it appears', async t => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { model, reading, appear } = await withoutRecord();
  t.mock.timers.tick(10_000);
  await turn();
  appear();
  t.mock.timers.tick(10_000);
  await reading;
  assert.deepEqual([model.refusal, model.isComplete, model.lineCount], ['', true, 1]);
});

test('a missing record of a run that ends before the next attempt is read', async t => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { model, reading, appear } = await withoutRecord();
  model.run = { ...model.run, state: 'done', end: 5 };
  appear();
  t.mock.timers.tick(10_000);
  await reading;
  assert.deepEqual([model.refusal, model.isComplete, model.lineCount], ['', true, 1]);
});

test('a missing record of a finished run is not polled', async () => {
  const model = new RunModel({ ...run, state: 'done', end: 5 });
  const { api } = server([]);
  api.isThere = () => Promise.resolve(true);
  api.run = () => Promise.reject(new ApiError("no record 'r'", 404));
  await follow(model, api, new AbortController().signal);
  assert.equal(model.refusal, "no record 'r'.");
});

test('a lost run whose writer returns during the last read is followed', async () => {
  const model = new RunModel(run);
  const { api } = server([
    { text: line('one'), state: 'lost', run: { state: 'running' } },
    { text: line('two'), run: { state: 'done', end: 5 } }
  ]);
  await follow(model, api, new AbortController().signal);
  assert.deepEqual([model.run.state, model.isComplete, model.lineCount], ['done', true, 2]);
});
