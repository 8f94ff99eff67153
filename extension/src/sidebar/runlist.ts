/** The newest runs; each opens in a panel. */
import type { Run } from '../schema';
import { trans } from '../translation';
import { h, setChildren, setText } from '../view/dom';
import { how, SIGNS, who } from '../words';

export class RunList {
  readonly node = h('div', 'rr-run-list', { role: 'list', 'aria-label': trans.__('newest runs') });
  private rows = new Map<string, Row>();
  private none = h('div', 'rr-nothing', {}, trans.__('No run yet: a cell that starts with %1 is one.', '%%distributed'));

  constructor(private open: (run: Run) => void) {}

  refresh(runs: readonly Run[], now: number): void {
    const nodes = runs.map(run => {
      const row = this.rows.get(run.id) ?? new Row(run, () => this.open(run));
      this.rows.set(run.id, row);
      return row.refresh(run, now);
    });
    const there = new Set(runs.map(run => run.id));
    [...this.rows.keys()].filter(id => !there.has(id)).forEach(id => this.rows.delete(id));
    setChildren(this.node, nodes.length ? nodes : [this.none]);
  }
}

class Row {
  private sign = h('span', 'rr-sign', { 'aria-hidden': 'true' });
  private words = h('span', 'rr-run-words');
  private node: HTMLElement;

  constructor(run: Run, open: () => void) {
    const title = run.name || run.title || run.id;
    const when = new Date(run.start / 1000).toLocaleString();
    const tip = `${title}\n${trans.__('%1, %2: open in a panel', run.id, when)}`;
    this.node = h(
      'div', '', { role: 'listitem' },
      h(
        'button', 'rr-run-row', { 'data-run': run.id, title: tip, onclick: open },
        this.sign, h('span', 'rr-run-title', {}, title), this.words
      )
    );
  }

  refresh(run: Run, now: number): HTMLElement {
    setText(this.sign, SIGNS[run.state] ?? '?');
    this.sign.className = `rr-sign rr-is-${run.state}`;
    const state = run.state === 'lost' ? trans.__('lost') : how(run, now * 1e6);
    const asks = run.state === 'running' && run.prompts?.length ? [trans.__('waits for an answer')] : [];
    setText(this.words, [who(run), state, ...asks].join(' · '));
    return this.node;
  }
}
