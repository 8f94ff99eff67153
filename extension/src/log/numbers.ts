/**
 * Lines that differ only in their numbers: what they have in common, and all of them in one text. Python's
 * `display/differing_numbers.py` has the same rules, and tests/support/collapse.json tests both.
 */
import { plain } from './ansi';

/** A piece of such lines: text or a number that all share, or, where their numbers differ, the number of each line. */
export type Piece = string | readonly string[];

/** Up to this many ranks' numbers are shown side by side; of more, the lowest and the highest. */
const SIDE_BY_SIDE = 4;
const NUMBER = new RegExp(
  '(?<![0-9A-Za-z_])0x[0-9a-fA-F]+' +
    String.raw`|(?<![0-9A-Za-z_.])[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?` +
    String.raw`|(?<=[A-Za-z_])[0-9]+(?:\.[0-9]+)?(?!\.?[0-9A-Za-z_])`,
  'g'
);
const WHOLE = /^[-+]?[0-9]+$/;
const RANK_BEFORE = /(?:rank|gpu|cuda|device|worker|process|proc|replica|task)[ :=#_-]{0,3}$/i;
/** Characters before a number in which a word such as `rank` is searched for. */
const BEFORE = 10;

/** Return a text that is equal for lines that differ only in numbers; `rank` wrote this one. */
export function commonText(text: string, rank: number): string {
  const shown = plain(text);
  let counted = 0;
  let first = '';
  let numbers = 0;
  const common = shown.replace(NUMBER, (number: string, at: number) => {
    numbers += 1;
    // What matters is the first number that is not a rank's, and whether there is a second.
    if (counted < 2 && !isOfRank(shown, number, at, rank)) {
      first = counted++ ? first : number;
    }
    return '\0';
  });
  if (!numbers) {
    return text;
  }
  // Numbers may be padded to columns.
  return `${common.replace(/ +/g, ' ').replace(/ $/, '')}\0${counted > 1 && WHOLE.test(first) ? first : ''}`;
}

/** Split lines that differ only in numbers into pieces. */
export function piecesOf(texts: readonly string[]): Piece[] {
  const shown = texts.map(plain);
  const numbers = shown.map(text => text.match(NUMBER) ?? []);
  const pieces: Piece[] = [];
  shown[0].split(NUMBER).forEach((word, at) => {
    if (at > 0) {
      const own = numbers.map(each => each[at - 1]);
      pieces.push(own.every(number => number === own[0]) ? own[0] : own);
    }
    pieces.push(word);
  });
  return pieces;
}

/** Return a piece as text: `0.41|0.43`, or `0.39…0.45` for many numbers. */
export function pieceText(piece: Piece): string {
  if (typeof piece === 'string') {
    return piece;
  }
  if (piece.length <= SIDE_BY_SIDE) {
    return piece.join('|');
  }
  const best = (isBetter: (a: number, b: number) => boolean): string =>
    piece.reduce((found, number) => (isBetter(Number(number), Number(found)) ? number : found));
  return `${best((a, b) => a < b)}…${best((a, b) => a > b)}`;
}

/** Whether a number names a rank: `rank 1`, `cuda:1`, or the rank's own at the line's start: `[1]`, `1:`. */
function isOfRank(text: string, number: string, at: number, rank: number): boolean {
  const before = text.slice(Math.max(at - BEFORE, 0), at);
  if (RANK_BEFORE.test(before)) {
    return true;
  }
  const isFirst = at === before.length && ['', '[', '('].includes(before);
  return isFirst && number === String(rank) && [']', ')', ':', '|'].includes(text.charAt(at + number.length));
}
