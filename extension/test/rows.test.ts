import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { Log } from '../src/log/log';
import { GAP, Rows } from '../src/log/rows';
import type { LogEvent } from '../src/schema';

const wrote = (rank: number, text: string, stream: 'stdout' | 'stderr' = 'stdout'): LogEvent => ({
  kind: 'log', rank, seq: 0, t: 0, stream, text
});

function filled(...events: LogEvent[]): { log: Log; rows: Rows } {
  const log = new Log();
  events.forEach(event => [...log.write(event)]);
  const rows = new Rows(log.lines, log.collapse);
  return { log, rows };
}

function seen({ log, rows }: { log: Log; rows: Rows }): string[] {
  [...rows.update()];
  return Array.from({ length: rows.length }, (_, row) =>
    rows.line(row) === GAP ? 'gap' : log.lines.text(rows.line(row))
  );
}

test('lines come together from pieces, plain or not', () => {
  const parts = filled(wrote(0, 'a'), wrote(1, 'x\n'), wrote(0, 'b\nc'), wrote(0, 'é\nd\n'), wrote(0, 'e'));
  assert.deepEqual(seen(parts), ['x', 'ab', 'cé', 'd']);
  assert.deepEqual(parts.log.unfinished, [{ rank: 0, flags: 0, text: 'e', cut: 0 }]);
  parts.log.end();
  assert.deepEqual(seen(parts), ['x', 'ab', 'cé', 'd', 'e']);
});

test('filters by rank and by text, collapsed or not, also for what comes later', () => {
  const parts = filled(wrote(0, 'one\ntwo\n'), wrote(1, 'one\nThree\n'));
  const { log, rows } = parts;
  const collapsed = true;
  assert.deepEqual(seen(parts), ['one', 'two', 'Three']);
  rows.setFilter({ ranks: null, text: null, collapsed: false });
  assert.deepEqual(seen(parts), ['one', 'two', 'one', 'Three']);
  rows.setFilter({ ranks: new Set([1]), text: null, collapsed });
  assert.deepEqual(seen(parts), ['one', 'Three']);
  [...log.write(wrote(1, 'two\n'))];
  assert.deepEqual(seen(parts), ['one', 'Three', 'two']);
  rows.setFilter({ ranks: null, text: text => text.includes('o'), collapsed });
  assert.deepEqual(seen(parts), ['one', 'two']);
});

test('a rank that joins an earlier group appears there', () => {
  const parts = filled(wrote(0, 'a\nb\nc\n'));
  parts.rows.setFilter({ ranks: new Set([1]), text: null, collapsed: true });
  assert.deepEqual(seen(parts), []);
  [...parts.log.write(wrote(1, 'b\n'))];
  assert.deepEqual(seen(parts), ['b']);
});

test('a text filter sees what the reader sees, not the escape sequences', () => {
  const parts = filled(wrote(0, 'lo\x1b[31mss\x1b[0m\n\x1b[31mx\x1b[0m\n'));
  parts.rows.setFilter({ ranks: null, text: text => text.includes('loss'), collapsed: true });
  assert.equal(seen(parts).length, 1);
  parts.rows.setFilter({ ranks: null, text: text => text.includes('31m'), collapsed: true });
  assert.equal(seen(parts).length, 0);
});

test('heights follow the width', () => {
  const parts = filled(wrote(0, `${'x'.repeat(25)}\n\ny\n`));
  const { rows } = parts;
  rows.wrap(10);
  seen(parts);
  assert.deepEqual([rows.top(0), rows.top(1), rows.top(2), rows.height], [0, 3, 4, 5]);
  assert.deepEqual([0, 2, 3, 4, 9].map(top => rows.at(top)), [0, 0, 1, 2, 2]);
  rows.wrap(5);
  assert.deepEqual([rows.top(1), rows.height], [5, 7]);
});

test('beyond the bound the head and the newest stay, with a gap between', () => {
  for (const collapsed of [true, false]) {
    const log = new Log({ lines: 100_000, chars: 1e8 });
    const rows = new Rows(log.lines, log.collapse);
    rows.setFilter({ ranks: null, text: null, collapsed });
    for (let i = 0; i < 150; i++) {
      const own = [0, 1].map(rank => Array.from({ length: 1_000 }, (_, k) => `line ${i * 1_000 + k}${k % 3 ? '' : ` of ${rank}`}`));
      [...log.write(wrote(0, own[0].join('\n') + '\n'))];
      [...log.write(wrote(1, own[1].join('\n') + '\n'))];
      if (i % 7 === 0) {
        [...rows.update()];
      }
    }
    const texts = seen({ log, rows });
    assert.equal(log.lines.length, 300_000);
    assert.ok(log.lines.kept <= 100_000 && log.lines.kept > 20_000);
    assert.ok(log.lines.weight < 4_000_000);
    assert.equal(texts[0], 'line 0 of 0');
    assert.equal(texts.at(-1), 'line 149999 of 1');
    assert.equal(texts.filter(text => text === 'gap').length, 1);
    assert.ok(texts.every(text => text !== ''));
    const gap = texts.indexOf('gap');
    const number = (text: string): number => Number(/\d+/.exec(text)?.[0]);
    assert.ok(number(texts[gap - 1]) < number(texts[gap + 1]));
    assert.equal(rows.height, rows.length);
    rows.setFilter({ ...rows.filter });
    assert.deepEqual(seen({ log, rows }), texts);
  }
});
