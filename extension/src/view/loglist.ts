/**
 * The log as a list of which only the rows in sight exist.
 *
 * Under a cell it grows to 20 rows, and scrolls inside only once it has the focus, so that the
 * wheel moves the notebook and not whatever log is under the pointer. In a panel it fills the panel.
 */
import { Widget } from '@lumino/widgets';

import { GAP, Rows, textRows, type Filter } from '../log/rows';
import { cutNote, STYLED } from '../log/lines';
import { plain } from '../log/ansi';
import { columnsOf } from '../log/width';
import type { RunModel } from '../run/model';
import { runSlice } from '../run/slices';
import { count } from '../words';
import { Frame, h } from './dom';
import { rowNode, updateRanks, type RowContent } from './row';
import { Scroll } from './scroll';

/** Rows of the log under a cell. */
export const INLINE_ROWS = 20;
const OVERSCAN = 5;
/** Milliseconds of a frame for filtering. */
const SHARE = 6;
const PROBE = 100;

interface OpenRow extends RowContent {
  top: number;
  height: number;
}

export class LogList extends Widget {
  private rows: Rows;
  private generation: number;
  private frame = new Frame(() => this.paint());
  private scroll = new Scroll();
  private shown = new Map<number, HTMLElement>();
  private open: OpenRow[] = [];
  private openNodes: HTMLElement[] = [];
  private pending: Iterator<void> | null = null;
  private columns = 80;
  private lineHeight = 17;
  private expectedTop = 0;
  private marked = -1;

  private probe = h('span', 'rr-probe', { 'aria-hidden': 'true' }, '0'.repeat(PROBE));
  private content = h('div', 'rr-rows');
  private space = h('pre', 'rr-space', {}, this.probe, this.content);
  private box = h(
    'div',
    'rr-list jp-RenderedText',
    {
      tabindex: '0',
      role: 'log',
      'aria-live': 'off',
      'aria-label': 'log of the ranks',
      onscroll: () => this.onScroll(),
      onkeydown: (event: KeyboardEvent) => this.onKey(event),
      onwheel: (event: WheelEvent) => this.onWheel(event)
    },
    this.space
  );
  private toEnd = h('button', 'rr-toend', { onclick: () => this.goTo(Infinity), hidden: true }, '↓ to the end');
  private foot = h('div', 'rr-foot');
  private observer = new ResizeObserver(() => this.frame.request());

  constructor(
    private model: RunModel,
    private isInline: boolean
  ) {
    super();
    this.addClass('rr-log');
    this.toggleClass('rr-inline', isInline);
    this.node.append(this.box, this.toEnd, this.foot);
    this.rows = new Rows(model.log.lines, model.log.collapse);
    this.generation = model.generation;
    this.observer.observe(this.box);
    this.observer.observe(this.probe);
    this.box.addEventListener('focus', () => this.frame.request());
    this.box.addEventListener('blur', () => this.frame.request());
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.frame.cancel();
      this.observer.disconnect();
      this.rows.dispose();
      super.dispose();
    }
  }

  /** Something changed: paint it in the next frame. */
  refresh(): void {
    this.frame.request();
  }

  /** Under a cell: how many rows it may take. */
  setInline(isInline: boolean): void {
    this.isInline = isInline;
    this.toggleClass('rr-inline', isInline);
    this.frame.request();
  }

  setFilter(filter: Filter): void {
    const line = this.scroll.isFollowing ? -1 : this.topLine();
    this.rows.setFilter(filter);
    this.dropNodes();
    this.pending = null;
    this.keep = line;
    this.frame.request();
  }

  /** Scroll to a line and mark it. */
  reveal(line: number): void {
    this.marked = line;
    this.dropNodes();
    while (!runSlice(this.rows.update())) {
      // The line may not have been looked at yet; this happens on a click only.
    }
    this.goTo((this.rows.top(this.rows.find(line)) - 3) * this.lineHeight);
    this.box.focus();
  }

  // The line to stay at while a new filter is applied.
  private keep = -1;

  private topLine(): number {
    const line = this.rows.line(this.rows.at(this.scroll.offset / this.lineHeight));
    return line === undefined || line === GAP ? -1 : line;
  }

  private goTo(offset: number): void {
    this.scroll.moveTo(Math.max(0, offset));
    this.frame.request();
  }

  private onScroll(): void {
    if (Math.abs(this.box.scrollTop - this.expectedTop) > 1) {
      this.keep = -1;
      this.scroll.scrolledTo(this.box.scrollTop);
      this.expectedTop = this.box.scrollTop;
      this.frame.request();
    }
  }

  private onWheel(event: WheelEvent): void {
    const isFocused = document.activeElement === this.box || !this.isInline;
    if (this.scroll.isScaled && isFocused && !event.ctrlKey) {
      event.preventDefault();
      const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? this.lineHeight : 1;
      this.goTo(this.scroll.offset + event.deltaY * unit);
    }
  }

  private onKey(event: KeyboardEvent): void {
    const page = this.box.clientHeight - this.lineHeight;
    const steps: { [key: string]: number } = {
      ArrowUp: -this.lineHeight,
      ArrowDown: this.lineHeight,
      PageUp: -page,
      PageDown: page,
      ' ': event.shiftKey ? -page : page,
      Home: -Infinity,
      End: Infinity
    };
    const step = steps[event.key];
    if (step !== undefined && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      event.stopPropagation();
      this.keep = -1;
      this.goTo(this.scroll.offset + step);
    }
  }

  private paint(): void {
    if (this.isDisposed || this.box.offsetParent === null) {
      return;
    }
    if (this.generation !== this.model.generation) {
      this.begin();
    }
    this.measure();
    this.pending ??= this.rows.update();
    if (runSlice(this.pending, SHARE)) {
      this.pending = null;
    } else {
      this.frame.request();
    }
    this.layOpenRows();
    this.place();
    this.fill();
    this.say();
  }

  /** The model began anew. */
  private begin(): void {
    const { filter } = this.rows;
    this.rows.dispose();
    this.rows = new Rows(this.model.log.lines, this.model.log.collapse);
    this.rows.setFilter(filter);
    this.generation = this.model.generation;
    this.pending = null;
    this.dropNodes();
  }

  private dropNodes(): void {
    this.shown.clear();
    this.content.replaceChildren();
  }

  /** Learn the font's size, and wrap to the width there is. */
  private measure(): void {
    const { width, height } = this.probe.getBoundingClientRect();
    if (width === 0) {
      return;
    }
    this.lineHeight = Math.max(1, Math.round(height));
    const text = this.box.clientWidth - parseFloat(getComputedStyle(this.content).paddingLeft || '0');
    const columns = Math.max(10, Math.floor((text - this.gutter() * (width / PROBE)) / (width / PROBE)));
    if (columns !== this.columns) {
      this.columns = columns;
      this.rows.wrap(columns);
      this.dropNodes();
    }
    this.space.style.setProperty('--rr-line', `${this.lineHeight}px`);
    this.space.style.setProperty('--rr-columns', `${columns}ch`);
    this.space.style.setProperty('--rr-gutter', `${this.gutter() - 4}ch`);
  }

  /** Columns in front of the text: ranks, a bar and some air. */
  private gutter(): number {
    const most = this.model.ranks[this.model.ranks.length - 1] ?? 0;
    return 4 + (most === 0 ? 1 : most < 10 ? 5 : most < 100 ? 8 : 11);
  }

  private layOpenRows(): void {
    const { ranks, text, collapsed } = this.rows.filter;
    const rows: OpenRow[] = [];
    let top = this.rows.height;
    for (const line of this.model.log.unfinished) {
      const isSeen = (!ranks || ranks.has(line.rank)) && (!text || text(plain(line.text)));
      const same = rows.find(row => row.text === line.text && row.flags === line.flags);
      if (isSeen && collapsed && same) {
        same.ranks = [...same.ranks, line.rank].sort((a, b) => a - b);
      } else if (isSeen) {
        const width = columnsOf(plain(line.text)) + (line.cut ? cutNote(line.cut).length : 0);
        const height = textRows(width, this.columns);
        rows.push({ ...line, flags: line.flags | STYLED, ranks: [line.rank], t: null, top, height });
        top += height;
      }
    }
    this.open = rows;
  }

  private get textRows(): number {
    const last = this.open[this.open.length - 1];
    return last ? last.top + last.height : this.rows.height;
  }

  /** Size the box and bring the scrollbar to where we are. */
  private place(): void {
    const content = this.textRows * this.lineHeight;
    if (this.isInline) {
      this.box.style.height = `${Math.min(content, INLINE_ROWS * this.lineHeight)}px`;
    } else {
      this.box.style.height = '';
    }
    if (this.keep >= 0) {
      this.scroll.offset = this.rows.top(this.rows.find(this.keep)) * this.lineHeight;
      this.keep = this.pending ? this.keep : -1;
    }
    this.scroll.resize(content, this.box.clientHeight);
    this.space.style.height = `${this.scroll.spacer}px`;
    if (Math.abs(this.box.scrollTop - this.scroll.scrollTop) >= 1) {
      this.box.scrollTop = this.scroll.scrollTop;
    }
    this.expectedTop = this.box.scrollTop;
  }

  /** Make the rows in sight exist, and the others not. */
  private fill(): void {
    const first = Math.max(0, this.rows.at(this.scroll.offset / this.lineHeight) - OVERSCAN);
    const bottom = (this.scroll.offset + this.box.clientHeight) / this.lineHeight + OVERSCAN;
    const nodes: HTMLElement[] = [];
    const shown = new Map<number, HTMLElement>();
    for (let row = first; row < this.rows.length && this.rows.top(row) < bottom; row++) {
      const line = this.rows.line(row);
      const node = this.shown.get(line) ?? this.make(line);
      if (line !== GAP) {
        const flags = this.model.log.lines.flags(line);
        updateRanks(node, { ranks: this.ranksOf(line), flags, t: this.model.log.lines.time(line) });
      }
      shown.set(line, node);
      nodes.push(node);
    }
    this.openNodes.forEach(node => node.remove());
    this.openNodes = this.open.filter(row => row.top < bottom).map(rowNode);
    nodes.push(...this.openNodes);
    this.shown = shown;
    if (nodes.some((node, i) => this.content.children[i] !== node) || this.content.childElementCount !== nodes.length) {
      this.content.replaceChildren(...nodes);
    }
    const top = this.rows.top(first) * this.lineHeight;
    this.content.style.transform = `translateY(${this.box.scrollTop + top - this.scroll.offset}px)`;
  }

  private make(line: number): HTMLElement {
    const { lines } = this.model.log;
    if (line === GAP) {
      const missing = lines.gap.to - lines.gap.from;
      return h('div', 'rr-row rr-gap', {}, `… ${count(missing, 'line')} not shown here: download the whole log …`);
    }
    const node = rowNode({
      ranks: this.ranksOf(line),
      flags: lines.flags(line),
      text: lines.text(line),
      cut: lines.cut(line),
      t: lines.time(line)
    });
    node.classList.toggle('rr-marked', line === this.marked);
    return node;
  }

  private ranksOf(line: number): number[] {
    const { ranks, collapsed } = this.rows.filter;
    const all = collapsed ? this.model.log.collapse.ranks(line) : [this.model.log.lines.rank(line)];
    return ranks ? all.filter(rank => ranks.has(rank)) : all;
  }

  /** The line under the log: what is to be known about it. */
  private say(): void {
    const isLong = this.scroll.end > 0;
    this.toEnd.hidden = !isLong || this.scroll.isFollowing;
    const isFocused = document.activeElement === this.box;
    const rows = this.rows.length + this.open.length;
    const words: string[] = [];
    if (this.rows.filter.text && !this.pending) {
      words.push(rows ? `${count(rows, 'row')} with this text` : 'no line with this text');
    }
    if (isLong && this.isInline && !isFocused) {
      words.push(`${count(rows, 'row')}: click into the log to scroll it`);
    }
    const text = words.join(' · ');
    if (this.foot.textContent !== text) {
      this.foot.textContent = text;
    }
  }
}
