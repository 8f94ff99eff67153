import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { formatRanks, nameRanks, parseRanks } from '../src/ranks';
import { parseBundle, parseEvent } from '../src/record';
import type { Run } from '../src/schema';
import { duration, errorWords, exactMoment, grouped, how, who } from '../src/words';

const run: Run = {
  version: 1, id: 'r', state: 'done', start: 1_000_000, end: 13_400_000, cluster: 'local', size: 4,
  ranks: [0, 1, 2, 3].map(rank => ({ rank, host: 'h', pid: 1, device: 'cpu' }))
};

test('ranks are written as ranges', () => {
  assert.equal(formatRanks([0, 1, 2, 5, 7, 8]), '0–2,5,7–8');
  assert.equal(formatRanks([1, 1, 2]), '1–2');
  assert.equal(nameRanks([2]), 'rank 2');
  assert.equal(nameRanks([0, 1]), 'ranks 0–1');
});

test('typed ranks are parsed, and invalid ones explained', () => {
  const there = [0, 1, 2, 5];
  assert.deepEqual(parseRanks('0, 2-9', there), new Set([0, 2, 5]));
  assert.deepEqual(parseRanks('1–2 5', there), new Set([1, 2, 5]));
  assert.match(String(parseRanks('x', there)), /like 0,2-3/);
  assert.match(String(parseRanks('3', there)), /it has 0–2,5/);
});

test('durations, counts and states are formatted for reading', () => {
  assert.deepEqual(
    [85_000, 12_400_000, 59_960_000, 125_000_000, 3_720_000_000].map(duration),
    ['85 ms', '12.4 s', '1 min 00 s', '2 min 05 s', '1 h 02 min']
  );
  assert.equal(grouped(400_000), '400,000');
  assert.equal(how(run, 0), 'done in 12.4 s');
  assert.equal(how({ ...run, state: 'running' }, 13_900_000), 'running 12 s');
  const failure = { rank: 1, ename: 'E', evalue: '' };
  assert.equal(how({ ...run, state: 'failed', failure }, 0), 'failed on rank 1 after 12.4 s');
  assert.equal(who(run), '4 ranks');
  assert.equal(who({ ...run, ranks: [] }), '4 ranks', 'a saved output that has no room for them');
  assert.equal(who({ ...run, ranks: run.ranks.filter(({ rank }) => rank !== 1) }), 'ranks 0,2–3 of 4');
});

test('moments are formatted with the requested precision', () => {
  assert.deepEqual(
    [0, 42_000, 59_999_600, 62_345_678, 3_723_123_000, -1_500_000].map(t => exactMoment(t)),
    ['+0.000 s', '+0.042 s', '+1:00.000', '+1:02.346', '+1:02:03.123', '−1.500 s']
  );
  assert.deepEqual(
    [5_000, 450, 45, 0].map(fine => exactMoment(3_723_123_456, fine)),
    ['+1:02:03.123', '+1:02:03.1235', '+1:02:03.12346', '+1:02:03.123456']
  );
});

test('invalid events are distinguished from unknown newer ones', () => {
  const event = { kind: 'log', rank: 0, seq: 0, t: 0, stream: 'stdout', text: 'x' };
  assert.deepEqual(parseEvent(JSON.stringify(event)), event);
  assert.equal(parseEvent(JSON.stringify(event).slice(0, -3)), null);
  assert.equal(parseEvent(JSON.stringify({ ...event, text: 5 })), null);
  assert.equal(parseEvent(JSON.stringify({ ...event, rank: '0' })), null);
  assert.equal(parseEvent('[1]'), null);
  assert.equal(parseEvent('null'), null);
  assert.equal(parseEvent(JSON.stringify({ ...event, kind: 'weather' })), 'unknown');
  assert.equal(parseEvent(JSON.stringify({ ...event, kind: 'constructor' })), 'unknown');
  assert.equal(parseEvent(JSON.stringify({ kind: 'weather', rank: 0 })), null);
  assert.equal(parseEvent(JSON.stringify({ ...event, kind: 'display', data: ['x'] })), null);
});

test('the bundle of a cell’s output is validated', () => {
  assert.deepEqual(parseBundle({ version: 1, run }), { version: 1, run });
  assert.equal(parseBundle({ version: 1, run: { ...run, version: 2 } })?.version, 2);
  assert.equal(parseBundle({ version: 7, run })?.version, 7);
  assert.equal(parseBundle({ version: 1 }), null);
  assert.equal(parseBundle('x'), null);
});

test('an error without a message is shown by its name', () => {
  assert.equal(errorWords({ ename: 'KeyboardInterrupt', evalue: '' }, 80), 'KeyboardInterrupt');
  assert.equal(errorWords({ ename: 'ValueError', evalue: 'no such rank\nor any' }, 80), 'ValueError: no such rank');
});
