/**
 * What a terminal shows of one line after carriage returns, backspaces and erasures: the last state
 * of a progress bar.
 */

import { carried } from './ansi';

// eslint-disable-next-line no-control-regex
const MOVES = /[\r\b]|\x1b\[\d*[CDGK]/;
const TOKEN =
  // eslint-disable-next-line no-control-regex
  /\x1b\[([0-?]*)[ -/]*([@-~])|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?|[^\x1b]/gu;
// Columns at most: such a line is no wider than the terminal it was written for.
const MOST = 16_384;
const PASSES = 8;

export interface Overprinted {
  /** The line as shown; colors stay as SGR sequences. */
  text: string;
  /** What replaces all that was written so far, so that further output can be appended. */
  resume: string;
}

/** Whether a line must be resolved before it is shown, because it moves the cursor or erases. */
export function moves(text: string): boolean {
  return MOVES.test(text);
}

/** Resolve one line, which holds no line end. */
export function overprint(line: string): Overprinted {
  const last = lastPass(line);
  if (last !== null) {
    return { text: last, resume: line.endsWith('\r') ? `${last}\r` : last };
  }
  const chars: string[] = [];
  // The color in force is stored with each character, so that overwriting replaces both.
  const colours: string[] = [];
  let colour = '';
  let column = 0;
  for (const [token, codes, final] of recent(line).matchAll(TOKEN)) {
    const count = Math.max(1, Number(codes) || 1);
    if (token === '\r') {
      column = 0;
    } else if (token === '\b' || final === 'D') {
      column = Math.max(0, column - (token === '\b' ? 1 : count));
    } else if (final === 'C') {
      column = Math.min(MOST, column + count);
    } else if (final === 'G') {
      column = Math.min(MOST, count - 1);
    } else if (final === 'K') {
      erase(chars, Number(codes) || 0, column);
    } else if (final === 'm') {
      colour = carried(colour + token);
    } else if (token[0] !== '\x1b' && column < MOST) {
      while (chars.length < column) {
        colours[chars.length] = '';
        chars.push(' ');
      }
      chars[column] = token;
      colours[column] = colour;
      column += 1;
    }
  }
  const text = joined(chars, colours);
  const back = column < chars.length ? `\r${column ? `\x1b[${column}C` : ''}` : '';
  return { text, resume: text + back + colour };
}

/** Reduce the passes of a progress bar to those that may still be visible: the last ones and the longest other. */
function recent(line: string): string {
  const passes = line.split('\r');
  if (passes.length > PASSES + 2) {
    const earlier = passes.splice(0, passes.length - PASSES);
    passes.unshift(earlier.reduce((a, b) => (b.length > a.length ? b : a)));
  }
  return passes.map(pass => pass.slice(-MOST)).join('\r');
}

/** Return the last pass of the usual bar: only carriage returns, and it covers the earlier passes; else null. */
function lastPass(text: string): string | null {
  // eslint-disable-next-line no-control-regex
  if (/[\b\x1b]/.test(text)) {
    return null;
  }
  const passes = text.split('\r').filter(pass => pass !== '');
  const last = passes.pop() ?? '';
  return passes.every(pass => pass.length <= last.length) ? last : null;
}

function erase(chars: string[], how: number, column: number): void {
  if (how === 1) {
    chars.fill(' ', 0, Math.min(column + 1, chars.length));
  } else {
    chars.length = how === 0 ? Math.min(chars.length, column) : 0;
  }
}

function joined(chars: string[], colours: string[]): string {
  let out = '';
  let colour = '';
  chars.forEach((char, i) => {
    if (colours[i] !== colour) {
      out += (colour ? '\x1b[0m' : '') + colours[i];
      colour = colours[i];
    }
    out += char;
  });
  return out + (colour ? '\x1b[0m' : '');
}
