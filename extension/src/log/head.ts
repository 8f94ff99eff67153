/** The head of a group whose lines are not equal: one row, which can be opened to show each of them. */
import { trans } from '../translation';
import { grouped } from '../words';
import type { Lines } from './lines';
import { piecesOf, pieceText, type Piece } from './numbers';
import { columnsOf } from './width';

export interface Head {
  /** The rank of each line. */
  ranks: readonly number[];
  /** The row's text; a piece that is a list has one number per line. */
  pieces: readonly Piece[];
  /** Whether it stands for start-up messages. */
  isFold: boolean;
}

/** Columns of the button that opens it. */
export const OPENER = 2;

/** Return the head of these lines: start-up messages (`isFold`), or lines that differ in numbers. */
export function headOf(lines: Lines, members: readonly number[], isFold: boolean): Head {
  const ranks = members.map(line => lines.rank(line));
  const pieces = isFold ? [foldWords(members.length)] : piecesOf(members.map(line => lines.text(line)));
  return { ranks, pieces, isFold };
}

/** Columns that a head takes. */
export function headWidth({ pieces }: Head): number {
  return OPENER + columnsOf(headText(pieces));
}

/** The pieces of a head as one text. */
export function headText(pieces: readonly Piece[]): string {
  return pieces.map(pieceText).join('');
}

function foldWords(lines: number): string {
  return trans._n(
    "TensorFlow's start-up messages: %2 line",
    "TensorFlow's start-up messages: %2 lines",
    lines,
    grouped(lines)
  );
}
