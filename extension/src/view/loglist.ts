/**
 * The log as a virtual list: only the visible rows exist as nodes.
 *
 * Under a cell, it grows to 20 rows, and scrolls only once it has the focus, so that the wheel
 * scrolls the notebook and not the log under the pointer. In a panel, it fills the panel.
 */
import { Widget } from '@lumino/widgets';

import { GAP, Rows, type Filter } from '../log/rows';
import type { RunModel } from '../run/model';
import { runSlice } from '../run/slices';
import { trans } from '../translation';
import { grouped } from '../words';
import { Frame, h, setChildren, setText } from './dom';
import { CharSize } from './charsize';
import { openRows, type OpenRow } from './openrows';
import { openerNode, rowNode, updateRanks } from './row';
import { ScrollBox } from './scrollbox';

/** Maximum rows of the log under a cell. */
export const INLINE_ROWS = 20;
const OVERSCAN = 5;
/** Milliseconds per frame for filtering. */
const SHARE = 6;

export class LogList extends Widget {
  private rows: Rows;
  private generation: number;
  private frame = new Frame(() => this.paint());
  private shown = new Map<number, HTMLElement>();
  private open: OpenRow[] = [];
  private pending: Iterator<void> | null = null;
  private chars = new CharSize();
  private marked = -1;
  /** The line to show while rows are being computed, with `above` rows above it. */
  private keep: { line: number; above: number } | null = null;

  private content = h('div', 'rr-rows');
  private space = h('pre', 'rr-space', {}, this.chars.probe, this.content);
  private box = new ScrollBox(this.space, byReader => {
    this.keep = byReader ? null : this.keep;
    this.frame.request();
  });
  private toEnd = h(
    'button',
    'rr-toend',
    {
      // Keep the focus in the list: without it, the line below would appear, and move the button away.
      onmousedown: (event: MouseEvent) => event.preventDefault(),
      onclick: () => this.goToEnd(),
      hidden: true
    },
    trans.__('↓ to the end')
  );
  private foot = h('div', 'rr-foot');
  private observer = new ResizeObserver(() => this.frame.request());

  constructor(
    private model: RunModel,
    private isInline: boolean,
    private toMoment: (t: number) => void
  ) {
    super();
    this.addClass('rr-log');
    this.toggleClass('rr-inline', isInline);
    this.node.append(this.box.node, this.toEnd, this.foot);
    this.rows = new Rows(model.log);
    this.generation = model.generation;
    this.content.addEventListener('click', event => this.onClick(event));
    this.box.node.addEventListener('keydown', event => this.onKey(event));
    this.observer.observe(this.box.node);
    this.observer.observe(this.chars.probe);
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.frame.cancel();
      this.observer.disconnect();
      this.rows.dispose();
      super.dispose();
    }
  }

  /** Paint in the next frame, as something has changed. */
  refresh(): void {
    this.frame.request();
  }

  /** Set whether the height is limited, as under a cell. */
  setInline(isInline: boolean): void {
    this.isInline = isInline;
    this.toggleClass('rr-inline', isInline);
    this.frame.request();
  }

  setFilter(filter: Filter): void {
    const line = this.box.scroll.isFollowing ? -1 : this.topLine();
    this.keep = line < 0 ? null : { line, above: 0 };
    this.rows.setFilter(filter);
    this.dropNodes();
    this.pending = null;
    this.frame.request();
  }

  /** Whether the filter shows this line. */
  shows(line: number): boolean {
    return this.rows.shows(line);
  }

  /** Scroll to a line and mark it. */
  reveal(line: number): void {
    this.marked = this.rows.shownAs(line);
    this.dropNodes();
    this.keep = { line, above: 3 };
    this.frame.request();
    this.focus();
  }

  /** Set whether there is a timeline, which lines can link to. */
  setTimed(isTimed: boolean): void {
    this.toggleClass('rr-timed', isTimed);
    if (isTimed) {
      this.box.node.dataset.rrKeys = 't';
    }
  }

  private onClick(event: MouseEvent): void {
    const button = event.target instanceof HTMLElement && event.target.closest<HTMLElement>('.rr-moment, .rr-opener');
    if (button && button.dataset.group) {
      this.toggle(Number(button.dataset.group));
    } else if (button) {
      this.toMoment(Number(button.dataset.t));
    }
  }

  /** Show or hide the lines of a row that stands for several; the row stays in place. */
  private toggle(group: number): void {
    const { offset } = this.box.scroll;
    this.keep = { line: group, above: this.rows.top(this.rows.find(group)) - offset / this.lineHeight };
    this.rows.toggle(group);
    this.pending = null;
    this.frame.request();
  }

  /** On `t`, go to the moment of the marked line, or of the first visible one. */
  private onKey(event: KeyboardEvent): void {
    const isPlain = !event.ctrlKey && !event.altKey && !event.metaKey;
    const line = this.marked >= 0 && this.shown.has(this.marked) ? this.marked : this.topLine();
    if (event.key === 't' && isPlain && this.hasClass('rr-timed') && line >= 0) {
      event.preventDefault();
      this.toMoment(this.timeOf(line));
    }
  }

  focus(): void {
    this.box.node.focus();
  }

  /** Scroll to the end, and focus the list, as the button with the focus disappears. */
  private goToEnd(): void {
    this.box.goTo(Infinity, true);
    this.focus();
  }

  /** Return when a line was written, on the timeline's clock. */
  private timeOf(line: number): number {
    const { log: { lines }, spans } = this.model;
    return lines.time(line) - spans.offset(lines.rank(line));
  }

  private topLine(): number {
    const line = this.rows.line(this.rows.at(this.box.scroll.offset / this.lineHeight));
    return line === undefined || line === GAP ? -1 : line;
  }

  private paint(): void {
    if (this.isDisposed || this.box.node.offsetParent === null) {
      return;
    }
    if (this.generation !== this.model.generation) {
      this.begin();
    }
    const { ranks } = this.model;
    const line = this.box.scroll.isFollowing ? -1 : this.topLine();
    if (this.chars.measure(this.space, this.box.node.clientWidth, ranks[ranks.length - 1] ?? 0)) {
      this.rows.wrap(this.chars.columns);
      this.dropNodes();
      this.keep ??= line < 0 ? null : { line, above: 0 };
    }
    this.box.lineHeight = this.lineHeight;
    this.pending ??= this.rows.update();
    if (runSlice(this.pending, SHARE).done) {
      this.pending = null;
    } else {
      this.frame.request();
    }
    const { rows, model, chars } = this;
    this.open = openRows(model.log.unfinished, rows.filter, rows.height, chars.columns);
    this.place();
    this.fill();
    this.say();
  }

  /** Start over, as the model was reset. */
  private begin(): void {
    const { filter } = this.rows;
    this.rows.dispose();
    this.rows = new Rows(this.model.log);
    this.rows.setFilter(filter);
    this.rows.wrap(this.chars.columns);
    this.generation = this.model.generation;
    this.pending = null;
    this.dropNodes();
  }

  private dropNodes(): void {
    this.shown.clear();
    this.content.replaceChildren();
  }

  private get lineHeight(): number {
    return this.chars.lineHeight;
  }

  private get textRows(): number {
    const last = this.open[this.open.length - 1];
    return last ? last.top + last.height : this.rows.height;
  }

  /** Set the height of the box, and move the scrollbar to the current position. */
  private place(): void {
    const content = this.textRows * this.lineHeight;
    if (this.isInline) {
      this.box.node.style.height = `${Math.min(content, INLINE_ROWS * this.lineHeight)}px`;
    } else {
      this.box.node.style.height = '';
    }
    this.box.place(content);
    if (this.keep) {
      const { line, above } = this.keep;
      this.box.scroll.moveTo((this.rows.top(this.rows.find(line)) - above) * this.lineHeight);
      this.box.place(content);
      this.keep = this.pending ? this.keep : null;
    }
  }

  /** Create the nodes of the visible rows, and remove the others. */
  private fill(): void {
    const first = Math.max(0, this.rows.at(this.box.scroll.offset / this.lineHeight) - OVERSCAN);
    const bottom = (this.box.scroll.offset + this.box.node.clientHeight) / this.lineHeight + OVERSCAN;
    const nodes: HTMLElement[] = [];
    const shown = new Map<number, HTMLElement>();
    for (let row = first; row < this.rows.length && this.rows.top(row) < bottom; row++) {
      const node = this.nodeOf(row);
      shown.set(this.nameOf(row), node);
      nodes.push(node);
    }
    const group = document.activeElement?.closest<HTMLElement>('.rr-opener')?.dataset.group;
    this.shown = shown;
    const open = this.open.filter(row => row.top < bottom).map(rowNode);
    setChildren(this.content, [...nodes, ...open]);
    if (group && !this.content.contains(document.activeElement)) {
      // The node of its row was replaced.
      this.content.querySelector<HTMLElement>(`.rr-opener[data-group="${group}"]`)?.focus({ preventScroll: true });
    }
    const top = this.rows.top(first) * this.lineHeight;
    this.content.style.transform = `translateY(${this.box.node.scrollTop + top - this.box.scroll.offset}px)`;
  }

  /** Return a key for a row's node; a head's is negative, as its line may also have a row of its own below. */
  private nameOf(row: number): number {
    const line = this.rows.line(row);
    return this.rows.head(row) ? -1 - line : line;
  }

  /** Return the node of a row, reusing the previous one if it is still correct. */
  private nodeOf(row: number): HTMLElement {
    const line = this.rows.line(row);
    const before = this.shown.get(this.nameOf(row));
    if (!before || line === GAP) {
      return this.make(row);
    }
    const head = this.rows.head(row);
    if (head) {
      const node = this.make(row);
      return node.isEqualNode(before) ? before : node;
    }
    const { lines } = this.model.log;
    updateRanks(before, { ranks: this.rows.ranks(row), flags: lines.flags(line), t: this.timeOf(line) });
    return this.dress(before, row);
  }

  private make(row: number): HTMLElement {
    const { lines } = this.model.log;
    const line = this.rows.line(row);
    if (line === GAP) {
      const missing = lines.gap.to - lines.gap.from;
      return h('div', 'rr-row rr-gap', {}, trans._n(
        '… %2 line not shown here: download the whole log …',
        '… %2 lines not shown here: download the whole log …',
        missing,
        grouped(missing)
      ));
    }
    const head = this.rows.head(row);
    const node = rowNode({
      ranks: this.rows.ranks(row),
      flags: lines.flags(line),
      text: lines.text(line),
      cut: head ? 0 : lines.cut(line),
      t: this.timeOf(line),
      head,
      opener: head ? openerNode(line, this.rows.isOpened(line), head) : undefined
    });
    return this.dress(node, row);
  }

  /** Set the classes that depend on a row's place, and not on the ranks that wrote it. */
  private dress(node: HTMLElement, row: number): HTMLElement {
    node.classList.toggle('rr-marked', this.rows.line(row) === this.marked);
    node.classList.toggle('rr-member', this.rows.isMember(row));
    return node;
  }

  /** Update the line under the log, and the button that scrolls to the end. */
  private say(): void {
    const isLong = this.box.scroll.end > 0;
    this.toEnd.hidden = !isLong || this.box.scroll.isFollowing;
    const rows = this.rows.length + this.open.length;
    const isFiltered = this.rows.filter.text !== null && !this.pending;
    let text = '';
    if (isLong && this.isInline && !this.box.hasFocus) {
      text = isFiltered
        ? trans._n(
            '%2 row with this text: click into the log to scroll it',
            '%2 rows with this text: click into the log to scroll it',
            rows,
            grouped(rows)
          )
        : trans._n('%2 row: click into the log to scroll it', '%2 rows: click into the log to scroll it', rows, grouped(rows));
    } else if (isFiltered) {
      text = rows
        ? trans._n('%2 row with this text', '%2 rows with this text', rows, grouped(rows))
        : trans.__('no line with this text');
    }
    setText(this.foot, text);
  }
}
