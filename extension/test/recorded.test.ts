/** A record in a page of its own: what the view asks of it. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';

import { Recorded } from '../src/page/recorded';

const EVENTS = '{"a":1}\n{"bb":2}\n{"ccc":"ü"}\n';
const PARTS: { [name: string]: string } = {
  '': '{"id":"r","state":"failed"}',
  events: EVENTS,
  log: '0 │ one\n1 │ two\n11 │ three\n1 ┆ four\n',
  overview: ''
};

const recorded = new Recorded(name => (name in PARTS ? gzipSync(PARTS[name]).toString('base64') : ''));

async function ask(path: string): Promise<{ answer: Response; text: string }> {
  const answer = await recorded.answer(`/rankroom/runs/r${path}`);
  return { answer, text: await answer.text() };
}

test('the run, and what there is of it', async () => {
  assert.equal((await ask('')).text, PARTS['']);
  assert.equal((await ask('/overview')).text, '');
  assert.equal((await ask('/log')).text, PARTS.log);
  const refused = await ask('/interrupt');
  assert.equal(refused.answer.status, 404);
  assert.match(refused.text, /no ranks to ask/);
});

test('whole lines of events from a byte on', async () => {
  const size = Buffer.byteLength(EVENTS);
  const of = async (query: string): Promise<[string, number]> => {
    const { answer, text } = await ask(`/events?${query}`);
    assert.equal(answer.headers.get('X-Rankroom-State'), 'failed');
    assert.equal(Number(answer.headers.get('X-Rankroom-Size')), size);
    return [text, Number(answer.headers.get('X-Rankroom-Next'))];
  };
  assert.deepEqual(await of('after=0&limit=1000'), [EVENTS, size]);
  assert.deepEqual(await of('after=0&limit=10'), ['{"a":1}\n', 8]);
  // A line that is longer than the limit is given whole.
  assert.deepEqual(await of('after=0&limit=2'), ['{"a":1}\n', 8]);
  assert.deepEqual(await of(`after=8&limit=1000`), [EVENTS.slice(8), size]);
  assert.deepEqual(await of(`after=${size}&limit=10`), ['', size]);
});

test('the log of some ranks', async () => {
  assert.equal((await ask('/log?rank=1')).text, '1 │ two\n1 ┆ four\n');
  assert.equal((await ask('/log?rank=0,11')).text, '0 │ one\n11 │ three\n');
});
