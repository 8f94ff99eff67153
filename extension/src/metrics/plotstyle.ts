/** What a plot shows, and how its lines are told apart. */
import type { Range } from '../timeline/range';
import type { XAxis } from './choice';
import type { Line } from './lines';

/** Space for the labels of the axes; the same as in style/metrics.css. */
export const MARGIN = { left: 46, right: 8, top: 6, bottom: 18 };
/** The dash patterns of ranks that share a color, in order. */
export const DASHES = [[], [5, 3], [2, 2], [7, 2, 2, 2]];
/** The lines of compared runs, all dashed: the rank whose color each has (one that few runs have), and its dashes. */
export const OTHERS = [
  { rank: 3, dash: [8, 4] },
  { rank: 2, dash: [2, 3] },
  { rank: 6, dash: [10, 3, 2, 3] },
  { rank: 5, dash: [5, 2, 2, 2, 2, 2] }
];

export interface Colours {
  /** The colors of ranks, which share them. */
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
  /** The lines of compared runs, drawn under this run's. */
  others: readonly Line[];
  axis: XAxis;
  range: Range;
  isLog: boolean;
  /** In CSS pixels, including the margins. */
  width: number;
  height: number;
  ratio: number;
  colours: Colours;
  /** The place that is pointed at; null for none. */
  cursor: number | null;
  /** The range that is being selected; null for none. */
  part: Range | null;
}

export type Context = CanvasRenderingContext2D;

export function colourOf({ rank, other }: Line, { ranks, ink }: Colours): string {
  const shared = other === undefined ? rank : OTHERS[other].rank;
  return shared === null ? ink : ranks[shared % ranks.length];
}

/** Return a line's dashes. Ranks have them only if they share colors, and not if there are too many ranks. */
export function dashOf({ rank, other }: Line, { lines, colours: { ranks } }: Plot): readonly number[] {
  if (other !== undefined) {
    return OTHERS[other].dash;
  }
  const isTold = lines.length > 1 && lines.length <= DASHES.length * ranks.length;
  return isTold ? DASHES[Math.floor((rank ?? 0) / ranks.length) % DASHES.length] : [];
}
