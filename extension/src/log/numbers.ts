/**
 * Lines that differ only in their numbers: what they have in common, and all in one text. The rules are those of
 * Python's `display/differing_numbers.py`; tests/support/collapse.json holds both to them.
 */
import { plain } from './ansi';

/** A piece of such lines: a word that all have, or one number of each, as far as they differ. */
export type Piece = string | readonly string[];

/** So many ranks' numbers stand side by side; of more, the lowest and the highest. */
const SIDE_BY_SIDE = 4;
const NUMBER = new RegExp(
  '(?<![0-9A-Za-z_])0x[0-9a-fA-F]+' +
    String.raw`|(?<![0-9A-Za-z_.])[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?` +
    String.raw`|(?<=[A-Za-z_])[0-9]+(?:\.[0-9]+)?(?!\.?[0-9A-Za-z_])`,
  'g'
);
const WHOLE = /^[-+]?[0-9]+$/;
const RANK_BEFORE = /(?:rank|gpu|cuda|device|worker|process|proc|replica|task)[ :=#_-]{0,3}$/i;
/** The longest word of a rank, and what may stand between it and the number. */
const BEFORE = 10;

/** Equal for lines that differ only in numbers; `rank` wrote this one. */
export function commonText(text: string, rank: number): string {
  const shown = plain(text);
  let counted = 0;
  let first = '';
  let numbers = 0;
  const common = shown.replace(NUMBER, (number: string, at: number) => {
    numbers += 1;
    // Which number is a rank's matters for the first that is not.
    if (counted < 2 && !isOfRank(shown, number, at, rank)) {
      first = counted++ ? first : number;
    }
    return '\0';
  });
  if (!numbers) {
    return text;
  }
  // Numbers are padded to columns.
  return `${common.replace(/ +/g, ' ').replace(/ $/, '')}\0${counted > 1 && WHOLE.test(first) ? first : ''}`;
}

/** The pieces of such lines. */
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

/** A piece in words: `0.41|0.43`, or `0.39…0.45` of many. */
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

/** `rank 1`, `cuda:1`, or the rank's own number at the line's start: `[1]`, `1:`. */
function isOfRank(text: string, number: string, at: number, rank: number): boolean {
  const before = text.slice(Math.max(at - BEFORE, 0), at);
  if (RANK_BEFORE.test(before)) {
    return true;
  }
  const isFirst = at === before.length && ['', '[', '('].includes(before);
  return isFirst && number === String(rank) && [']', ')', ':', '|'].includes(text.charAt(at + number.length));
}
