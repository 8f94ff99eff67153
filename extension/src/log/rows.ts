/**
 * The lines that are to be seen, in order, and how high each is: filtered by rank and text,
 * collapsed or not. Work is done in steps, so that a browser stays quick with a million lines.
 */
import { lowerBound } from '../lowerbound';
import type { Changes, Collapse } from './collapse';
import { NumberList } from './column';
import { STYLED, type Lines } from './lines';
import { plain } from './ansi';

export interface Filter {
  /** Ranks to be seen, or null for all. */
  ranks: ReadonlySet<number> | null;
  /** Whether a line's text is to be seen, or null for all. */
  text: ((text: string) => boolean) | null;
  collapsed: boolean;
}

/** Stands for the lines that were let go. */
export const GAP = 0xffffffff;
const STEP = 500;

export class Rows {
  filter: Filter = { ranks: null, text: null, collapsed: true };

  private ids = new NumberList();
  private tops = new NumberList();
  private scanned = 0;
  private gapEnd = 0;
  private columns = 80;
  private changes: Changes;

  constructor(
    private lines: Lines,
    private collapse: Collapse
  ) {
    this.changes = collapse.watch();
  }

  dispose(): void {
    this.collapse.unwatch(this.changes);
  }

  get length(): number {
    return this.ids.length;
  }

  /** The line of a row, or GAP. */
  line(row: number): number {
    return this.ids.at(row);
  }

  /** Text rows above this one. */
  top(row: number): number {
    return row < this.length ? this.tops.at(row) : this.height;
  }

  /** Text rows of all. */
  get height(): number {
    const last = this.length - 1;
    return last < 0 ? 0 : this.tops.at(last) + this.rowHeight(this.ids.at(last));
  }

  /** The row at a text row. */
  at(top: number): number {
    return Math.max(0, lowerBound(this.length, row => this.tops.at(row), Math.floor(top) + 1) - 1);
  }

  /** The first row at or after a line. */
  find(line: number): number {
    const key = this.filter.collapsed ? this.collapse.key(this.collapse.group(line)) : line;
    return this.position(key);
  }

  /** Columns to wrap at. */
  wrap(columns: number): void {
    if (columns !== this.columns) {
      this.columns = columns;
      this.stack();
    }
  }

  setFilter(filter: Filter): void {
    this.filter = filter;
    this.restart(0);
  }

  /** Take in what is new; every step takes a fraction of a millisecond. */
  *update(): Generator<void> {
    for (;;) {
      this.heed();
      const end = Math.min(this.scanned + STEP, this.sourceLength);
      if (this.scanned >= end) {
        return;
      }
      while (this.scanned < end) {
        this.scan();
      }
      yield;
    }
  }

  private get sourceLength(): number {
    return this.filter.collapsed ? this.collapse.order.length : this.lines.length;
  }

  /** Go back to where the log changed since the last step. */
  private heed(): void {
    if (this.gapEnd !== this.lines.gap.to) {
      this.gapEnd = this.lines.gap.to;
      this.restart(this.lines.gap.from);
    }
    const changes = this.changes;
    if (this.filter.collapsed) {
      this.collapse.settle();
      const from = this.filter.ranks ? Math.min(changes.order, changes.members) : changes.order;
      if (from < Infinity) {
        this.restart(from);
      }
    }
    changes.order = Infinity;
    changes.members = Infinity;
  }

  private restart(key: number): void {
    const from = this.position(key);
    this.ids.cut(from);
    this.tops.cut(from);
    const source = this.filter.collapsed ? this.collapse.position(key) : key;
    this.scanned = key === 0 ? 0 : Math.min(this.scanned, source);
  }

  private position(key: number): number {
    return lowerBound(this.length, row => this.keyOf(this.ids.at(row)), key);
  }

  private keyOf(id: number): number {
    const gap = this.lines.gap;
    if (id === GAP || (id >= gap.from && id < gap.to)) {
      return gap.from;
    }
    return this.filter.collapsed ? this.collapse.key(id) : id;
  }

  private scan(): void {
    const gap = this.lines.gap;
    const id = this.filter.collapsed ? this.collapse.order.at(this.scanned) : this.scanned;
    if (gap.to > gap.from && id >= gap.from && this.ids.at(this.length - 1) !== GAP && this.isPastGap()) {
      this.append(GAP);
    }
    if (!this.filter.collapsed && id >= gap.from && id < gap.to) {
      this.scanned = gap.to;
      return;
    }
    this.scanned += 1;
    if (this.isSeen(id)) {
      this.append(id);
    }
  }

  private isPastGap(): boolean {
    const last = this.length - 1;
    return last < 0 || this.keyOf(this.ids.at(last)) < this.lines.gap.from;
  }

  private isSeen(id: number): boolean {
    const { ranks, text, collapsed } = this.filter;
    if (ranks && !(collapsed ? this.collapse.isOf(id, ranks) : ranks.has(this.lines.rank(id)))) {
      return false;
    }
    if (!text) {
      return true;
    }
    const shown = this.lines.text(id);
    return text(this.lines.flags(id) & STYLED ? plain(shown) : shown);
  }

  private append(id: number): void {
    this.tops.push(this.height);
    this.ids.push(id);
  }

  private rowHeight(id: number): number {
    return id === GAP ? 1 : textRows(this.lines.width(id), this.columns);
  }

  private stack(): void {
    const length = this.length;
    this.tops.cut(0);
    for (let row = 0, top = 0; row < length; row++) {
      this.tops.push(top);
      top += this.rowHeight(this.ids.at(row));
    }
  }
}

/** Text rows of a text that is `width` columns wide. */
export function textRows(width: number, columns: number): number {
  return Math.max(1, Math.ceil(width / columns));
}
