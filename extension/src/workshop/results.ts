/** How an exercise went: a bar for each number of tries, of those who passed and of those who have not yet. */
import { trans } from '../translation';
import { h, setChildren, setText } from '../view/dom';
import type { Bar, Overview } from '../workshop_answers';

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
  private rows: Row[] = [];

  constructor(private choose: (exercise: string) => void) {
    this.node = h('div', 'rr-ws-results', {}, this.select, this.bars);
  }

  refresh({ exercises, results }: Overview): void {
    const names = results.exercise && !exercises.includes(results.exercise) ? [results.exercise, ...exercises] : exercises;
    this.select.hidden = names.length === 0;
    const there = [...this.select.options].map(option => option.value);
    if (there.join() !== names.join()) {
      this.select.replaceChildren(...names.map(name => h('option', '', { value: name }, name)));
    }
    if (document.activeElement !== this.select) {
      this.select.value = results.exercise;
    }
    const bars: Array<[string, Bar]> = [
      ...results.passed.map((bar): [string, Bar] => ['passed', bar]),
      ...results.trying.map((bar): [string, Bar] => ['trying', bar]),
      ['untried', { label: '', count: results.untried }]
    ];
    const most = Math.max(1, ...bars.map(([, { count }]) => count));
    while (this.rows.length < bars.length) {
      this.rows.push(makeRow());
    }
    setChildren(this.bars, bars.map(([kind, bar], i) => fillRow(this.rows[i], kind, bar, most)));
    this.bars.hidden = names.length === 0;
  }
}

function makeRow(): Row {
  const label = h('span', 'rr-ws-bar-label');
  const fill = h('span', 'rr-ws-fill');
  const count = h('span', 'rr-ws-count');
  return { node: h('div', 'rr-ws-bar', { role: 'listitem' }, label, h('span', 'rr-ws-track', {}, fill), count), label, fill, count };
}

function fillRow(row: Row, kind: string, { label, count }: Bar, most: number): HTMLElement {
  const words = kind === 'untried' ? trans.__('not tried yet') : barLabel(kind, label);
  setText(row.label, words);
  setText(row.count, String(count));
  row.fill.style.width = `${(100 * count) / most}%`;
  row.node.dataset.kind = kind;
  return row.node;
}

/** `✓ 2 tries`, `✗ 4 tries and more`. */
function barLabel(kind: string, tries: string): string {
  const mark = kind === 'passed' ? '✓' : '✗';
  const isMore = tries.endsWith('+');
  const n = parseInt(tries, 10);
  return `${mark} ${isMore ? trans.__('%1 tries or more', n) : trans._n('%1 try', '%1 tries', n)}`;
}
