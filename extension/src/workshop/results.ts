/** The results of an exercise: bars for those who passed, by number of tries, and for those who have not. */
import { trans } from '../translation';
import { h, setChildren, setText } from '../view/dom';
import type { Overview, Results } from '../workshop_answers';

interface Bar {
  kind: 'passed' | 'tried' | 'not-tried' | 'silent';
  label: string;
  count: number;
}

interface Row {
  node: HTMLElement;
  label: HTMLElement;
  fill: HTMLElement;
  count: HTMLElement;
}

export class ResultsView {
  readonly node: HTMLElement;
  private select = h('select', 'rr-input', { 'aria-label': trans.__('exercise'), onchange: () => this.choose(this.select.value) });
  private bars = h('div', 'rr-ws-bars', { role: 'list' });
  private none = h('p', 'rr-hint', { hidden: true }, trans.__('The plan has no lesson with exercises.'));
  private rows: Row[] = [];

  constructor(private choose: (exercise: string) => void) {
    this.node = h('div', 'rr-ws-results', {}, this.select, this.bars, this.none);
  }

  refresh({ exercises, results }: Overview): void {
    const { exercise } = results;
    const names = exercise && !exercises.includes(exercise) ? [exercise, ...exercises] : exercises;
    const there = [...this.select.options].map(option => option.value);
    if (there.join() !== names.join()) {
      this.select.replaceChildren(...names.map(name => h('option', '', { value: name }, name)));
    }
    if (document.activeElement !== this.select) {
      this.select.value = exercise;
    }
    this.select.hidden = this.bars.hidden = names.length === 0;
    this.none.hidden = names.length > 0;
    const bars = barsOf(results);
    const most = Math.max(1, ...bars.map(({ count }) => count));
    while (this.rows.length < bars.length) {
      this.rows.push(makeRow());
    }
    setChildren(this.bars, bars.map((bar, i) => fillRow(this.rows[i], bar, most)));
  }
}

function barsOf({ tries, tried, not_tried: untried, silent }: Results): Bar[] {
  const passed = tries.map((count, i): Bar => {
    const n = i + 1;
    const words = n < tries.length ? trans._n('%1 try', '%1 tries', n) : trans.__('%1 tries or more', n);
    return { kind: 'passed', label: `✓ ${words}`, count };
  });
  const others: Bar[] = [
    { kind: 'tried', label: `✗ ${trans.__('not passed yet')}`, count: tried },
    { kind: 'not-tried', label: `○ ${trans.__('not tried yet')}`, count: untried }
  ];
  return silent ? [...passed, ...others, { kind: 'silent', label: `– ${trans.__('do not share')}`, count: silent }] : [...passed, ...others];
}

function makeRow(): Row {
  const label = h('span', 'rr-ws-bar-label');
  const fill = h('span', 'rr-ws-fill');
  const count = h('span', 'rr-ws-count');
  return { node: h('div', 'rr-ws-bar', { role: 'listitem' }, label, h('span', 'rr-ws-track', {}, fill), count), label, fill, count };
}

function fillRow(row: Row, { kind, label, count }: Bar, most: number): HTMLElement {
  setText(row.label, label);
  setText(row.count, String(count));
  row.fill.style.width = `${(100 * count) / most}%`;
  row.node.dataset.kind = kind;
  return row.node;
}
