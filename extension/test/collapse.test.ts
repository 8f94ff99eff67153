import { strict as assert } from 'node:assert';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { Collapse } from '../src/log/collapse';
import { FOLD, SAME } from '../src/log/groups';
import { headOf, headText } from '../src/log/head';
import { Lines, STDERR } from '../src/log/lines';
import { formatRanks } from '../src/ranks';

interface Options {
  stream?: string;
  by_numbers?: boolean;
}

function collapsed(said: Array<[number, string]>, settleEvery = 1_000, options: Options = {}): string[] {
  const lines = new Lines();
  const collapse = new Collapse(lines, options.by_numbers);
  said.forEach(([rank, text], i) => {
    collapse.add(lines.add(text, rank, options.stream === 'stderr' ? STDERR : 0, 0), text);
    if (i % settleEvery === 0) {
      collapse.settle();
    }
  });
  collapse.settle();
  return Array.from(collapse.order.tail(0), group => {
    assert.equal(collapse.group(group), group);
    return `${formatRanks(collapse.ranks(group))} ${shown(lines, collapse, group)}`;
  });
}

function shown(lines: Lines, collapse: Collapse, group: number): string {
  const kind = collapse.kind(group);
  return kind === SAME ? lines.text(group) : headText(headOf(lines, collapse.members(group), kind === FOLD).pieces);
}

const inTurn = (texts: string[][]): Array<[number, string]> =>
  texts.flatMap((own, rank) => own.map((text): [number, string] => [rank, text]));

/** Pseudorandom numbers, the same every time. */
function* dice(seed: number): Generator<number> {
  for (let x = seed; ; ) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    yield x / 2 ** 32;
  }
}

interface Case extends Options {
  name: string;
  said: Array<[number, string]>;
  groups: string[];
}

// From tests/support/collapse_cases.py, also for the summary that is saved in the notebook.
const CASES = JSON.parse(
  readFileSync(join(__dirname, '../../../tests/support/collapse.json'), 'utf8')
) as Case[];

for (const { name, said, groups, ...options } of CASES) {
  test(`as in Python: ${name}`, () => assert.deepEqual(collapsed(said, 1_000, options), groups));
}

test('equal lines of stdout and stderr are not collapsed', () => {
  const lines = new Lines();
  const collapse = new Collapse(lines);
  collapse.add(lines.add('x', 0, 0, 0), 'x');
  collapse.add(lines.add('x', 1, 1, 0), 'x');
  assert.equal(collapse.order.length, 2);
});

test('collapsing random output loses no line and keeps each rank’s order', () => {
  const random = dice(7);
  const roll = (n: number): number => Math.floor((random.next().value as number) * n);
  for (let round = 0; round < 300; round++) {
    const ranks = 1 + roll(5);
    const said: Array<[number, string]> = [];
    for (let batch = 0; batch < 12; batch++) {
      const rank = roll(ranks);
      for (let i = roll(8); i > 0; i--) {
        said.push([rank, 'abcde'[roll(5)]]);
      }
    }
    const rows = collapsed(said);
    for (let rank = 0; rank < ranks; rank++) {
      const seen = rows.map(row => row.split(' ')).filter(([who]) => isOf(who, rank));
      assert.deepEqual(
        seen.map(([, text]) => text),
        said.filter(([by]) => by === rank).map(([, text]) => text)
      );
    }
    assert.deepEqual(collapsed(said, 1), rows);
  }
});

function isOf(ranks: string, rank: number): boolean {
  return ranks.split(',').some(part => {
    const [first, last] = part.split('–').map(Number);
    return rank >= first && rank <= (last ?? first);
  });
}

test('a hundred thousand equal lines are collapsed quickly', () => {
  const texts = [Array<string>(50_000).fill('.'), Array<string>(50_000).fill('.')];
  const begin = used();
  const rows = collapsed(inTurn(texts));
  assert.ok(used() - begin < 3_000);
  // Only the newest groups can be joined.
  assert.ok(rows.length < 100_000 && rows.length >= 50_000);
});

/** Return this process's CPU time in milliseconds, which other load does not affect. */
function used(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
