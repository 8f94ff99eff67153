/**
 * The rows of the log, in order, and the height of each: lines filtered by rank and text, collapsed
 * or not. Work is done in steps, so that the browser stays responsive with a million lines.
 */
import { lowerBound } from '../lowerbound';
import { WINDOW, type Changes, type Collapse } from './collapse';
import { NumberList } from './column';
import { DIFFERS, FOLD, SAME } from './groups';
import { headOf, headWidth, type Head } from './head';
import { STYLED } from './lines';
import type { Log } from './log';
import { plain } from './ansi';

export interface Filter {
  /** Ranks to show, or null for all. */
  ranks: ReadonlySet<number> | null;
  /** Whether to show a line with this text, or null for all. */
  text: ((text: string) => boolean) | null;
  /** Whether equal lines of several ranks are shown once. */
  collapsed: boolean;
  /** Whether lines that differ only in numbers count as alike. */
  byNumbers: boolean;
}

export const EVERYTHING: Filter = { ranks: null, text: null, collapsed: true, byNumbers: false };

/** Stands for the lines that were dropped. */
export const GAP = 0xffffffff;
const STEP = 500;
/** Lines per step if those that differ only in numbers count as alike, which takes longer. */
const SMALL_STEP = 100;

/** What a row is: a line with all ranks that wrote it, a single line of a group, or the head of a group. */
const LINE = 0;
const MEMBER = 1;
const HEAD = 2;

export class Rows {
  filter: Filter = EVERYTHING;

  private ids = new NumberList();
  private tops = new NumberList();
  private kinds = new NumberList();
  private opened = new Set<number>();
  private scanned = 0;
  private gapEnd = 0;
  private columns = 80;
  private collapse: Collapse;
  private changes: Changes;

  constructor(private log: Log) {
    this.collapse = log.collapse;
    this.changes = this.collapse.watch();
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

  /** Whether the row is a single line of a group that has other rows as well. */
  isMember(row: number): boolean {
    return this.kinds.at(row) === MEMBER;
  }

  /** The ranks that wrote the row, as far as the filter shows them. */
  ranks(row: number): number[] {
    const line = this.ids.at(row);
    const isOne = !this.filter.collapsed || this.isMember(row);
    const all = isOne ? [this.log.lines.rank(line)] : this.collapse.ranks(this.collapse.group(line));
    const { ranks } = this.filter;
    return ranks ? all.filter(rank => ranks.has(rank)) : all;
  }

  /** The row's head, which stands for lines that are not equal; null if the row is a line itself. */
  head(row: number): Head | null {
    return this.kinds.at(row) === HEAD ? this.headOf(this.ids.at(row)) : null;
  }

  isOpened(group: number): boolean {
    return this.opened.has(group);
  }

  /** Show the lines of a group below its head, or hide them again. */
  toggle(group: number): void {
    if (!this.opened.delete(group)) {
      this.opened.add(group);
    }
    this.restart(this.collapse.key(group));
  }

  /** Text rows above this one. */
  top(row: number): number {
    return row < this.length ? this.tops.at(row) : this.height;
  }

  /** Text rows of all rows together. */
  get height(): number {
    const last = this.length - 1;
    return last < 0 ? 0 : this.tops.at(last) + this.rowHeight(last);
  }

  /** The row that covers a text row. */
  at(top: number): number {
    return Math.max(0, lowerBound(this.length, row => this.tops.at(row), Math.floor(top) + 1) - 1);
  }

  /** The first row at or after a line. */
  find(line: number): number {
    const key = this.filter.collapsed ? this.collapse.key(this.collapse.group(line)) : line;
    return this.position(key);
  }

  /** The line whose row shows this one. */
  shownAs(line: number): number {
    return this.filter.collapsed ? this.collapse.group(line) : line;
  }

  /** Set the columns to wrap at. */
  wrap(columns: number): void {
    if (columns !== this.columns) {
      this.columns = columns;
      if (this.filter.byNumbers) {
        this.restart(0);
      } else {
        this.stack();
      }
    }
  }

  setFilter(filter: Filter): void {
    if (filter.byNumbers !== this.filter.byNumbers) {
      this.collapse.unwatch(this.changes);
      this.collapse = filter.byNumbers ? this.log.byNumbers : this.log.collapse;
      this.changes = this.collapse.watch();
      this.opened.clear();
    }
    this.filter = filter;
    this.restart(0);
  }

  /** Process what is new; each step takes a fraction of a millisecond. */
  *update(): Generator<void> {
    const step = this.filter.byNumbers ? SMALL_STEP : STEP;
    for (;;) {
      while (this.filter.collapsed && this.collapse.isBehind) {
        this.collapse.takeIn(step);
        yield;
      }
      this.heed();
      const end = Math.min(this.scanned + step, this.sourceLength);
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
    return this.filter.collapsed ? this.collapse.order.length : this.log.lines.length;
  }

  /** Go back to where the log has changed since the last step. */
  private heed(): void {
    const { gap } = this.log.lines;
    if (this.gapEnd !== gap.to) {
      this.gapEnd = gap.to;
      // Groups before the gap may have lost lines that joined them, at most WINDOW lines later.
      this.restart(this.filter.collapsed ? Math.max(0, gap.from - 3 * WINDOW) : gap.from);
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
    for (const list of [this.ids, this.tops, this.kinds]) {
      list.cut(from);
    }
    const source = this.filter.collapsed ? this.collapse.position(key) : key;
    this.scanned = key === 0 ? 0 : Math.min(this.scanned, source);
  }

  private position(key: number): number {
    return lowerBound(this.length, row => this.keyOf(this.ids.at(row)), key);
  }

  private keyOf(id: number): number {
    const gap = this.log.lines.gap;
    if (id === GAP || (id >= gap.from && id < gap.to)) {
      return gap.from;
    }
    return this.filter.collapsed ? this.collapse.key(this.collapse.group(id)) : id;
  }

  private scan(): void {
    const gap = this.log.lines.gap;
    const id = this.filter.collapsed ? this.collapse.order.at(this.scanned) : this.scanned;
    if (gap.to > gap.from && id >= gap.from && this.ids.at(this.length - 1) !== GAP && this.isPastGap()) {
      this.append(GAP, LINE);
    }
    if (!this.filter.collapsed && id >= gap.from && id < gap.to) {
      this.scanned = gap.to;
      return;
    }
    this.scanned += 1;
    if (this.filter.collapsed && this.collapse.kind(id) !== SAME) {
      this.appendGroup(id);
    } else if (this.isSeen(id)) {
      this.append(id, LINE);
    }
  }

  private isPastGap(): boolean {
    const last = this.length - 1;
    return last < 0 || this.keyOf(this.ids.at(last)) < this.log.lines.gap.from;
  }

  /** Whether the filter shows this line. */
  shows(line: number): boolean {
    const { ranks } = this.filter;
    return (!ranks || ranks.has(this.log.lines.rank(line))) && this.hasText(line);
  }

  private isSeen(id: number): boolean {
    const { ranks, collapsed } = this.filter;
    if (ranks && !(collapsed ? this.collapse.isOf(id, ranks) : ranks.has(this.log.lines.rank(id)))) {
      return false;
    }
    return this.hasText(id);
  }

  private hasText(id: number): boolean {
    const { text } = this.filter;
    if (!text) {
      return true;
    }
    const { lines } = this.log;
    const shown = lines.text(id);
    return text(lines.flags(id) & STYLED ? plain(shown) : shown);
  }

  /** Append a group whose lines are not equal: its head, or those lines that match the text filter. */
  private appendGroup(group: number): void {
    const { lines } = this.log;
    const members = this.membersOf(group);
    const found = this.filter.text ? members.filter(line => this.hasText(line)) : members;
    const kind = this.collapse.kind(group);
    if (kind === DIFFERS && found.length > 0 && found.length === members.length) {
      const first = lines.text(found[0]);
      if (found.every(line => lines.text(line) === first)) {
        this.append(found[0], LINE);
        return;
      }
    }
    const isWhole = kind === FOLD ? !this.filter.text : found.length === members.length;
    if (isWhole && found.length > 0) {
      this.append(group, HEAD);
    }
    if (!isWhole || this.opened.has(group)) {
      found.forEach(line => this.append(line, MEMBER));
    }
  }

  private membersOf(group: number): number[] {
    const { ranks } = this.filter;
    const members = this.collapse.members(group);
    return ranks ? members.filter(line => ranks.has(this.log.lines.rank(line))) : members;
  }

  private headOf(group: number): Head {
    return headOf(this.log.lines, this.membersOf(group), this.collapse.kind(group) === FOLD);
  }

  private append(id: number, kind: number): void {
    this.tops.push(this.height);
    this.ids.push(id);
    this.kinds.push(kind);
  }

  private rowHeight(row: number): number {
    const id = this.ids.at(row);
    if (id === GAP) {
      return 1;
    }
    const isHead = this.kinds.at(row) === HEAD;
    return textRows(isHead ? headWidth(this.headOf(id)) : this.log.lines.width(id), this.columns);
  }

  private stack(): void {
    const length = this.length;
    this.tops.cut(0);
    for (let row = 0, top = 0; row < length; row++) {
      this.tops.push(top);
      top += this.rowHeight(row);
    }
  }
}

/** Text rows of a text that is `width` columns wide. */
export function textRows(width: number, columns: number): number {
  return Math.max(1, Math.ceil(width / columns));
}
