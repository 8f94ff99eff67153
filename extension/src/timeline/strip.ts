/** A row rendered to pixels: how much of each is covered, and mostly by which name. */
import type { TimeScale } from './range';
import { Row } from './row';

/** Minimum width in pixels of spans that are reported for labels. */
const WIDE = 24;
/** Minimum width in pixels of spans that have an edge. */
const EDGED = 4;

export interface Wide {
  /** The span's index in its row. */
  i: number;
  x: number;
  width: number;
}

export class Strip {
  /** The covered share of each pixel, 0 to 1. */
  readonly cover: Float32Array;
  /** The name that covers most of each pixel. */
  readonly name: Uint32Array;
  /** 1 where a span begins that is wide enough to be told from its neighbor. */
  readonly edge: Uint8Array;
  /** Number of spans and blocks visited: the cost of painting. */
  visited = 0;
  wide: Wide[] = [];
  private best: Float32Array;

  constructor(readonly width: number) {
    this.cover = new Float32Array(width);
    this.best = new Float32Array(width);
    this.name = new Uint32Array(width);
    this.edge = new Uint8Array(width);
  }

  clear(): void {
    this.cover.fill(0);
    this.best.fill(0);
    this.edge.fill(0);
    this.wide = [];
    this.visited = 0;
  }

  /** Add the visible part of the row. */
  add(row: Row, scale: TimeScale): void {
    const { blocks } = row;
    if (row.length > 0) {
      this.descend(row, scale, blocks.length - 1, 0, 1);
    }
  }

  private descend(row: Row, scale: TimeScale, depth: number, first: number, last: number): void {
    const { start, end, busy, name } = row.blocks[depth];
    const { range, perPixel } = scale;
    for (let block = first; block < Math.min(last, start.length); block++) {
      this.visited += 1;
      if (end[block] < range.from) {
        continue;
      }
      if (start[block] > range.to) {
        break;
      }
      if (end[block] - start[block] <= perPixel) {
        this.block((start[block] - range.from) / perPixel, (end[block] - range.from) / perPixel, busy[block] / perPixel, name[block]);
      } else if (depth > 0) {
        this.descend(row, scale, depth - 1, block * Row.fan, (block + 1) * Row.fan);
      } else {
        this.spans(row, scale, block * Row.leaf, Math.min((block + 1) * Row.leaf, row.length));
      }
    }
  }

  /** Add a block that is no wider than a pixel, but may lie in two. */
  private block(left: number, right: number, cover: number, name: number): void {
    const [x0, x1] = [Math.floor(left), Math.floor(right)];
    if (x0 === x1 || right === x1) {
      this.cell(x0, cover, name);
    } else {
      const share = (x1 - left) / (right - left);
      this.cell(x0, share * cover, name);
      this.cell(x1, (1 - share) * cover, name);
    }
  }

  /** Add spans. Most of the time is spent here, so the columns are read without a call for each number. */
  private spans({ columns, places }: Row, { range, perPixel }: TimeScale, first: number, last: number): void {
    const { start, dur, name, busy } = columns;
    const { from, to } = range;
    for (let i = first; i < last; i++) {
      this.visited += 1;
      const at = places ? places[i] : i;
      const begin = start[at];
      const lasts = dur[at];
      if (begin + lasts < from) {
        continue;
      }
      if (begin > to) {
        break;
      }
      const covered = busy ? busy[at] : lasts;
      if (lasts < perPixel) {
        this.cell(Math.floor((begin - from) / perPixel), covered / perPixel, name[at]);
      } else {
        const left = (begin - from) / perPixel;
        this.span(i, left, left + lasts / perPixel, name[at], covered / lasts);
      }
    }
  }

  /** Add a span of a pixel or more; `density` is its covered share, 0 to 1. */
  private span(i: number, left: number, right: number, name: number, density: number): void {
    const x0 = Math.max(0, Math.floor(left));
    const x1 = Math.min(this.width, Math.ceil(right));
    for (let x = x0; x < x1; x++) {
      this.cell(x, density * (Math.min(right, x + 1) - Math.max(left, x)), name);
    }
    if (density < 1) {
      return;
    }
    if (right - left >= EDGED && left >= 0 && x0 < this.width) {
      this.edge[x0] = 1;
    }
    if (x1 - x0 >= WIDE) {
      this.wide.push({ i, x: x0, width: x1 - x0 });
    }
  }

  private cell(x: number, cover: number, name: number): void {
    if (x < 0 || x >= this.width) {
      return;
    }
    // Every span is visible, however short it is.
    const share = Math.max(cover, 0.02);
    this.cover[x] = Math.min(1, this.cover[x] + share);
    if (share >= this.best[x]) {
      this.best[x] = share;
      this.name[x] = name;
    }
  }
}
