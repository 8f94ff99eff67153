import { strict as assert } from 'node:assert';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { carried, plain, spans } from '../src/log/ansi';
import { LONGEST } from '../src/log/openline';
import { overprint } from '../src/log/overprint';
import { Screen } from '../src/log/screen';
import { columnsOf } from '../src/log/width';

const shown = (line: string): string => plain(overprint(line).text);

test('a later pass of a progress bar overwrites the earlier one', () => {
  assert.equal(shown('10%\r20%\r30%'), '30%');
  assert.equal(shown('loading...\rdone'), 'doneing...');
  assert.equal(shown('loading...\r\x1b[Kdone'), 'done');
  assert.equal(shown('loading\x1b[2K\rok'), 'ok');
  assert.equal(shown('abc\b\bX'), 'aXc');
  assert.equal(shown('ab\x1b[3Cc\x1b[1GA'), 'Ab   c');
  assert.equal(shown('50%\r'), '50%');
});

test('Keras 2 and 3 bars, which go back by backspaces, are resolved', () => {
  const back = '\b'.repeat(10);
  assert.equal(shown(`1/3 [>...]${back}\r2/3 [=>..]${back}\r3/3 [====]`), '3/3 [====]');
});

test('colors stay with the characters they were written in', () => {
  const text = overprint('\x1b[31mred\x1b[0m old\r\x1b[32mgr').text;
  assert.deepEqual(spans(text), [
    { text: 'gr', style: { fg: 2 } },
    { text: 'd', style: { fg: 1 } },
    { text: ' old', style: {} }
  ]);
});

test('a progress bar of ten thousand passes is resolved quickly', () => {
  const passes = Array.from({ length: 10_000 }, (_, i) => `\r\x1b[32m${String(i).padStart(5)}\x1b[0m it`);
  const begin = used();
  const line = new Screen();
  for (const pass of passes) {
    assert.deepEqual([...line.feed(pass)], []);
  }
  assert.equal(plain(line.current[0].text), ' 9999 it');
  assert.equal(plain(overprint(passes.join('')).text), ' 9999 it');
  assert.ok(used() - begin < 2_000);
});

test('overprinting does not depend on how the text is split', () => {
  const text = 'abcdef\rXY\x1b[31mZ\x1b[0m\b\b\b\b!\r\x1b[2C?' + '.'.repeat(3_000) + '\r<>';
  const whole = shown(text);
  for (const size of [1, 2, 3, 7, 100]) {
    const line = new Screen();
    for (let i = 0; i < text.length; i += size) {
      [...line.feed(text.slice(i, i + size))];
    }
    assert.equal(plain(line.current[0].text), whole);
  }
});

test('a color continues on the next line until it is reset', () => {
  const line = new Screen();
  const lines = [...line.feed('\x1b[1;31mone\ntwo\x1b[0m\nthree\n')].map(({ text }) => spans(text));
  assert.deepEqual(lines, [
    [{ text: 'one', style: { bold: true, fg: 1 } }],
    [{ text: 'two', style: { bold: true, fg: 1 } }],
    [{ text: 'three', style: {} }]
  ]);
  assert.equal(carried('\x1b[38;5;196mx'), '\x1b[38;2;255;0;0m');
  assert.equal(carried('\x1b[97;44mx'), '\x1b[97;44m');
});

test('a line of 100 MB keeps its head, and counts the rest', () => {
  const line = new Screen();
  const piece = 'x'.repeat(1 << 20);
  for (let i = 0; i < 100; i++) {
    [...line.feed(piece)];
  }
  const [{ text, cut }, next] = [...line.feed('end\nnext\n')];
  assert.equal(text.length, LONGEST);
  assert.equal(text.length + cut, 100 * piece.length + 3);
  assert.deepEqual(next, { text: 'next', cut: 0 });
});

test('colors of all palettes and malformed codes are parsed', () => {
  const style = (codes: string): object => spans(`\x1b[${codes}mx`)[0].style;
  assert.deepEqual(style('91'), { fg: 9 });
  assert.deepEqual(style('38;5;208;1'), { fg: 'rgb(255, 135, 0)', bold: true });
  assert.deepEqual(style('38;5;244'), { fg: 'rgb(128, 128, 128)' });
  assert.deepEqual(style('48;2;1;2;300'), { bg: 'rgb(1, 2, 255)' });
  assert.deepEqual(style('31;39'), {});
  assert.deepEqual(style('38;5'), {});
  assert.deepEqual(style('38;2;1'), {});
  assert.deepEqual(style('38:2::255:0:0'), { fg: 'rgb(255, 0, 0)' });
  assert.deepEqual(style('38:2:255:0:0'), { fg: 'rgb(255, 0, 0)' });
  assert.deepEqual(style('1;48:5:244'), { bold: true, bg: 'rgb(128, 128, 128)' });
  assert.deepEqual(style('4:3'), { underline: true });
  assert.deepEqual(style('1;4;4:0'), { bold: true });
  assert.deepEqual(style('999;4;7;9;3;2'), { underline: true, inverse: true, strike: true, italic: true, dim: true });
});

test('terminal commands and bidirectional controls are neutralized', () => {
  assert.equal(plain('a\x00b\x07\x1b]0;title\x07c\x1b[2Jd\x1b(Be'), 'a␀b␇cde');
  assert.equal(plain('\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\'), 'link');
  assert.equal(plain('abc\u202edef'), 'abc\ufffddef');
  assert.equal(plain('\x1b[31'), '31');
});

test('wide, combining and tab characters are measured in columns', () => {
  assert.equal(columnsOf('abc'), 3);
  assert.equal(columnsOf('a\tb'), 9);
  assert.equal(columnsOf('漢字'), 4);
  assert.equal(columnsOf('e\u0301'), 1);
  assert.equal(columnsOf('🙂'), 2);
  assert.equal(columnsOf('│█▌'), 3);
});

test('nested progress bars keep their rows, and later lines are final', () => {
  const screen = new Screen();
  const final: string[] = [];
  const write = (text: string): void => {
    for (const line of screen.feed(text)) {
      final.push(plain(line.text));
    }
  };
  const seen = (): string[] => screen.current.map(line => plain(line.text).trimEnd());
  write('start\n\router 0%');
  for (let i = 1; i <= 500; i++) {
    write(`\n\rinner ${i}%\x1b[A`);
    write(`\router ${i}%`);
  }
  assert.deepEqual(final, ['start']);
  assert.deepEqual(seen(), ['outer 500%', 'inner 500%']);
  write('\n\r           \r\x1b[A\n');
  write('one\ntwo\nthree\n');
  assert.deepEqual(final.map(text => text.trimEnd()), ['start', 'outer 500%', 'one', 'two', 'three']);
  assert.deepEqual(seen(), []);
});

interface Bars {
  name: string;
  said: string[];
  lines: string[];
}

// The summary that is saved in the notebook is tested with the same cases.
const BARS = JSON.parse(readFileSync(join(__dirname, '../../../tests/support/bars.json'), 'utf8')) as Bars[];

for (const { name, said, lines } of BARS) {
  test(`progress bars as in Python: ${name}`, () => {
    const screen = new Screen();
    const final = said.flatMap(text => [...screen.feed(text)]);
    assert.deepEqual([...final, ...screen.current].map(line => plain(line.text).trimEnd()), lines);
  });
}

/** Return this process's CPU time in milliseconds, which other load does not affect. */
function used(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
