/** The golden records, read as the view reads them. */
import { strict as assert } from 'node:assert';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { plain } from '../src/log/ansi';
import { headText } from '../src/log/head';
import { EVERYTHING, Rows } from '../src/log/rows';
import { formatRanks } from '../src/ranks';
import { RunModel } from '../src/run/model';
import type { Run } from '../src/schema';

const RECORDS = join(__dirname, '../../../tests/support/records');
const names = readdirSync(RECORDS);

function read(name: string, piece = Infinity): RunModel {
  const file = (part: string): string => readFileSync(join(RECORDS, name, part), 'utf8');
  const model = new RunModel(JSON.parse(file('run.json')) as Run);
  const lines = file('events.jsonl').split(/(?<=\n)/);
  for (let i = 0; i < lines.length; i += piece) {
    [...model.take(lines.slice(i, i + piece).join(''))];
  }
  model.complete();
  return model;
}

function seen({ log }: RunModel): string[] {
  const rows = new Rows(log);
  [...rows.update()];
  return Array.from({ length: rows.length }, (_, row) => {
    const line = rows.line(row);
    return `${formatRanks(log.collapse.ranks(line))}|${plain(log.lines.text(line))}`;
  });
}

for (const name of names) {
  test(`${name}: the model does not depend on how the record is split`, () => {
    const whole = read(name);
    const pieces = read(name, 1);
    assert.deepEqual(seen(pieces), seen(whole));
    assert.deepEqual(pieces.outputs.grouped(null, true), whole.outputs.grouped(null, true));
    assert.equal(pieces.damaged, whole.damaged);
  });
}

test('a failure has its cause first, the ranks’ states, and notes in the log', () => {
  const model = read('failure');
  const { first, others } = model.failures;
  assert.deepEqual([first?.rank, first?.ename, others.map(({ rank }) => rank)], [1, 'ValueError', [0]]);
  assert.equal(model.stateOf(0), 'released');
  assert.equal(model.lineCount, 7);
  assert.ok(seen(model).includes('0|released from allreduce of x'));
});

test('damaged lines are counted, and unknown events of newer writers skipped', () => {
  const model = read('corrupt');
  assert.equal(model.damaged, 3);
  assert.deepEqual(seen(model), ['0–1|line 1', '1|line 2', '1|line 3', '0|line 4']);
});

test('progress bars and displays have their last state', () => {
  assert.equal(seen(read('progress')).length, 3);
  const shown = read('clear').outputs.grouped(null, true).map(({ data }) => data['text/plain']);
  assert.deepEqual(shown, ['kept until the next of rank 1', 'the next of rank 0']);
});

test('TensorFlow’s start-up messages in a Keras fit are one row', () => {
  const model = read('keras');
  const rows = new Rows(model.log);
  [...rows.update()];
  assert.equal(rows.length, 20);
  assert.equal(headText(rows.head(0)!.pieces), "TensorFlow's start-up messages: 16 lines");
  rows.setFilter({ ...EVERYTHING, byNumbers: true });
  [...rows.update()];
  assert.equal(rows.length, 8);
  assert.deepEqual(rows.ranks(3), [0, 1, 2, 3]);
});

test('a model that was reset reads the record again', () => {
  const model = read('ok');
  const before = seen(model);
  model.forget();
  assert.deepEqual([model.log.lines.length, model.outputs.length, model.isComplete], [0, 0, false]);
  [...model.take(readFileSync(join(RECORDS, 'ok', 'events.jsonl'), 'utf8'))];
  assert.deepEqual(seen(model), before);
});
