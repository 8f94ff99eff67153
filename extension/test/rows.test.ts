import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { headText } from '../src/log/head';
import { Log } from '../src/log/log';
import { EVERYTHING, GAP, Rows, type Filter } from '../src/log/rows';
import { formatRanks } from '../src/ranks';
import type { LogEvent } from '../src/schema';
import { openRows } from '../src/view/openrows';

const wrote = (rank: number, text: string, stream: 'stdout' | 'stderr' = 'stdout'): LogEvent => ({
  kind: 'log', rank, seq: 0, t: 0, stream, text
});

function filled(...events: LogEvent[]): { log: Log; rows: Rows } {
  const log = new Log();
  events.forEach(event => [...log.write(event)]);
  const rows = new Rows(log);
  return { log, rows };
}

function seen({ log, rows }: { log: Log; rows: Rows }): string[] {
  [...rows.update()];
  return Array.from({ length: rows.length }, (_, row) =>
    rows.line(row) === GAP ? 'gap' : log.lines.text(rows.line(row))
  );
}

test('lines are assembled from pieces of output', () => {
  const parts = filled(wrote(0, 'a'), wrote(1, 'x\n'), wrote(0, 'b\nc'), wrote(0, 'é\nd\n'), wrote(0, 'e'));
  assert.deepEqual(seen(parts), ['x', 'ab', 'cé', 'd']);
  assert.deepEqual(parts.log.unfinished, [{ rank: 0, flags: 0, text: 'e', cut: 0 }]);
  parts.log.end();
  assert.deepEqual(seen(parts), ['x', 'ab', 'cé', 'd', 'e']);
});

test('filters by rank and text also apply to later lines', () => {
  const parts = filled(wrote(0, 'one\ntwo\n'), wrote(1, 'one\nThree\n'));
  const { log, rows } = parts;
  assert.deepEqual(seen(parts), ['one', 'two', 'Three']);
  rows.setFilter({ ...EVERYTHING, collapsed: false });
  assert.deepEqual(seen(parts), ['one', 'two', 'one', 'Three']);
  rows.setFilter({ ...EVERYTHING, ranks: new Set([1]) });
  assert.deepEqual(seen(parts), ['one', 'Three']);
  [...log.write(wrote(1, 'two\n'))];
  assert.deepEqual(seen(parts), ['one', 'Three', 'two']);
  rows.setFilter({ ...EVERYTHING, text: text => text.includes('o') });
  assert.deepEqual(seen(parts), ['one', 'two']);
});

test('a rank that joins an earlier group appears there', () => {
  const parts = filled(wrote(0, 'a\nb\nc\n'));
  parts.rows.setFilter({ ...EVERYTHING, ranks: new Set([1]) });
  assert.deepEqual(seen(parts), []);
  [...parts.log.write(wrote(1, 'b\n'))];
  assert.deepEqual(seen(parts), ['b']);
});

test('a text filter sees what the reader sees, not the escape sequences', () => {
  const parts = filled(wrote(0, 'lo\x1b[31mss\x1b[0m\n\x1b[31mx\x1b[0m\n'));
  parts.rows.setFilter({ ...EVERYTHING, text: text => text.includes('loss') });
  assert.equal(seen(parts).length, 1);
  parts.rows.setFilter({ ...EVERYTHING, text: text => text.includes('31m') });
  assert.equal(seen(parts).length, 0);
});

test('heights of rows follow the width', () => {
  const parts = filled(wrote(0, `${'x'.repeat(25)}\n\ny\n`));
  const { rows } = parts;
  rows.wrap(10);
  seen(parts);
  assert.deepEqual([rows.top(0), rows.top(1), rows.top(2), rows.height], [0, 3, 4, 5]);
  assert.deepEqual([0, 2, 3, 4, 9].map(top => rows.at(top)), [0, 0, 1, 2, 2]);
  rows.wrap(5);
  assert.deepEqual([rows.top(1), rows.height], [5, 7]);
});

test('beyond the limit, the first and newest lines stay, with a gap between', () => {
  for (const collapsed of [true, false]) {
    const log = new Log({ lines: 100_000, chars: 1e8 });
    const rows = new Rows(log);
    rows.setFilter({ ...EVERYTHING, collapsed });
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

const ABSL = 'WARNING: All log messages before absl::InitializeLog() is called are written to STDERR';
const PORT = 'I0000 00:00:1795636176.28996   1452 port.cc:153] oneDNN custom operations are on.';

/** Return the visible rows: the head of a group in brackets, its lines with a dash. */
function shown({ log, rows }: { log: Log; rows: Rows }): string[] {
  [...rows.update()];
  return Array.from({ length: rows.length }, (_, row) => {
    const head = rows.head(row);
    const text = head ? `[${headText(head.pieces)}]` : log.lines.text(rows.line(row));
    return `${formatRanks(rows.ranks(row))} ${rows.isMember(row) ? '- ' : ''}${text}`;
  });
}

test('start-up messages fold into one row that opens and is searched by filters', () => {
  const parts = filled(
    wrote(0, `${ABSL}\n${PORT}\nan error\n`, 'stderr'),
    wrote(1, `${ABSL}\n${PORT}\n`, 'stderr')
  );
  const { log, rows } = parts;
  const fold = "0–1 [TensorFlow's start-up messages: 4 lines]";
  const lines = [`0 - ${ABSL}`, `0 - ${PORT}`, `1 - ${ABSL}`, `1 - ${PORT}`];
  assert.deepEqual(shown(parts), [fold, '0 an error']);
  rows.toggle(rows.line(0));
  assert.deepEqual(shown(parts), [fold, ...lines, '0 an error']);
  [...log.write(wrote(1, `${PORT}\nanother\n`, 'stderr'))];
  assert.deepEqual(shown(parts), [fold.replace('4', '5'), ...lines, lines[3], '0 an error', '1 another']);
  assert.equal(rows.height, 1 + 5 * 2 + 2);
  rows.setFilter({ ...EVERYTHING, ranks: new Set([0]) });
  assert.deepEqual(shown(parts), ["0 [TensorFlow's start-up messages: 2 lines]", ...lines.slice(0, 2), '0 an error']);
  rows.setFilter({ ...EVERYTHING, text: text => text.includes('oneDNN') });
  assert.deepEqual(shown(parts), [lines[1], lines[3], lines[3]]);
  rows.setFilter({ ...EVERYTHING, collapsed: false });
  assert.equal(shown(parts).length, 7);
  rows.setFilter(EVERYTHING);
  rows.toggle(rows.line(0));
  assert.deepEqual(shown(parts), [fold.replace('4', '5'), '0 an error', '1 another']);
});

test('lines that differ only in numbers are merged into one row that opens', () => {
  const parts = filled(wrote(0, 'step 1 loss 0.5\nstep 2 loss 0.4\n'), wrote(1, 'step 1 loss 0.51\n'));
  const { log, rows } = parts;
  rows.wrap(24);
  rows.setFilter({ ...EVERYTHING, byNumbers: true });
  assert.deepEqual(shown(parts), ['0–1 [step 1 loss 0.5|0.51]', '0 step 2 loss 0.4']);
  assert.equal(rows.height, 2);
  // The row is 20 columns wide, and its button takes two more.
  rows.wrap(21);
  shown(parts);
  assert.equal(rows.height, 3);
  rows.toggle(rows.line(0));
  const opened = ['0–1 [step 1 loss 0.5|0.51]', '0 - step 1 loss 0.5', '1 - step 1 loss 0.51'];
  assert.deepEqual(shown(parts), [...opened, '0 step 2 loss 0.4']);
  [...log.write(wrote(1, 'step 2 loss 0.4\nstep 3 loss nan\n'))];
  assert.deepEqual(shown(parts), [...opened, '0–1 step 2 loss 0.4', '1 step 3 loss nan']);
  rows.setFilter({ ...rows.filter, ranks: new Set([1]) });
  assert.deepEqual(shown(parts), ['1 step 1 loss 0.51', '1 step 2 loss 0.4', '1 step 3 loss nan']);
  rows.setFilter({ ...rows.filter, ranks: null, text: text => text.includes('loss 0.51') });
  assert.deepEqual(shown(parts), ['1 - step 1 loss 0.51']);
  rows.setFilter({ ...rows.filter, text: text => text.includes('loss 0.5') });
  assert.deepEqual(shown(parts), opened);
  rows.setFilter(EVERYTHING);
  assert.equal(shown(parts).length, 4);
});

test('beyond the limit, rows that differ only in numbers stay in order', () => {
  const log = new Log({ lines: 100_000, chars: 1e8 });
  const rows = new Rows(log);
  rows.setFilter({ ...EVERYTHING, byNumbers: true });
  for (let i = 0; i < 150; i++) {
    for (const rank of [0, 1]) {
      const own = Array.from({ length: 1_000 }, (_, k) => `line ${i * 1_000 + k} of ${k % 3 ? 0 : rank}.5\n`);
      [...log.write(wrote(rank, own.join('')))];
    }
    if (i % 7 === 0) {
      [...rows.update()];
      rows.toggle(rows.line(rows.length - 1));
    }
  }
  [...rows.update()];
  const lines = Array.from({ length: rows.length }, (_, row) => rows.line(row));
  assert.equal(lines.filter(line => line === GAP).length, 1);
  assert.equal(rows.head(0) && headText(rows.head(0)!.pieces), 'line 0 of 0.5|1.5');
  const gap = lines.indexOf(GAP);
  const number = (row: number): number => Number(/\d+/.exec(log.lines.text(rows.line(row)))?.[0]);
  for (let row = 1; row < rows.length; row++) {
    assert.ok(row === gap || row === gap + 1 || number(row) === number(row - 1) || number(row) === number(row - 1) + 1);
  }
  // Ranks write 1,000 lines in turn, so lines at the gap's edges may have lost their counterparts.
  assert.ok(number(gap + 1) - number(gap - 1) < log.lines.gap.to - log.lines.gap.from + 2_000);
});

test('unfinished lines that differ only in numbers are merged', () => {
  const unfinished = ['12/40 loss: 0.5', '12/40 loss: 0.25', '13/40 loss: 0.125'].map((text, rank) => ({
    rank, flags: 0, text, cut: 0
  }));
  const seen = (filter: Filter): string[] =>
    openRows(unfinished, filter, 7, 16).map(({ ranks, head, text, top }) =>
      `${top} ${formatRanks(ranks)} ${head ? headText(head.pieces) : text}`
    );
  assert.deepEqual(seen(EVERYTHING), ['7 0 12/40 loss: 0.5', '8 1 12/40 loss: 0.25', '9 2 13/40 loss: 0.125']);
  const byNumbers = { ...EVERYTHING, byNumbers: true };
  assert.deepEqual(seen(byNumbers), ['7 0–1 12/40 loss: 0.5|0.25', '9 2 13/40 loss: 0.125']);
  assert.equal(seen({ ...byNumbers, collapsed: false }).length, 3);
  assert.deepEqual(seen({ ...byNumbers, ranks: new Set([1]) }), ['7 1 12/40 loss: 0.25']);
});
