/** What a plot shows, and how its lines are told apart. */
import type { Range } from '../timeline/range';
import type { XAxis } from './choice';
import type { Line } from './lines';

/** Room for the labels of the axes; style/metrics.css has the same. */
export const MARGIN = { left: 46, right: 8, top: 6, bottom: 18 };
/** Ranks that share a colour with one before them are dashed. */
export const DASHES = [[], [5, 3], [2, 2], [7, 2, 2, 2]];
/** The lines of other runs, which all are dashed: their colour, as of a rank that few runs have, and their dashes. */
export const OTHERS = [
  { rank: 3, dash: [8, 4] },
  { rank: 2, dash: [2, 3] },
  { rank: 6, dash: [10, 3, 2, 3] },
  { rank: 5, dash: [5, 2, 2, 2, 2, 2] }
];

export interface Colours {
  /** Of ranks, which share them. */
  ranks: readonly string[];
  ink: string;
  faint: string;
  line: string;
  accent: string;
  font: string;
  background: string;
}

export interface Plot {
  lines: readonly Line[];
  /** Of runs that this one is compared with; they are drawn under its own. */
  others: readonly Line[];
  axis: XAxis;
  range: Range;
  isLog: boolean;
  /** In CSS pixels, with the margins. */
  width: number;
  height: number;
  ratio: number;
  colours: Colours;
  /** Where the pointer is. */
  cursor: number | null;
  /** What is being selected. */
  part: Range | null;
}

export type Context = CanvasRenderingContext2D;

export function colourOf({ rank, other }: Line, { ranks, ink }: Colours): string {
  const shared = other === undefined ? rank : OTHERS[other].rank;
  return shared === null ? ink : ranks[shared % ranks.length];
}

/** How a line is dashed: ranks only where they share colours, and not where there are too many of them. */
export function dashOf({ rank, other }: Line, { lines, colours: { ranks } }: Plot): readonly number[] {
  if (other !== undefined) {
    return OTHERS[other].dash;
  }
  const isTold = lines.length > 1 && lines.length <= DASHES.length * ranks.length;
  return isTold ? DASHES[Math.floor((rank ?? 0) / ranks.length) % DASHES.length] : [];
}
