/** Selects the metrics to plot if there are many: a field to filter them, and a list of those without a plot. */
import { textFilter } from '../../log/textfilter';
import type { Choice } from '../../metrics/choice';
import { FIRST_NAMES, type Picked } from '../../metrics/pick';
import { trans } from '../../translation';
import { grouped } from '../../words';
import { h, setText } from '../dom';

/** Maximum number of names in the list; more can be found only by filtering. */
const LISTED = 200;

export class NamePicker {
  /** The test that names must pass; null for all. */
  test: ((name: string) => boolean) | null = null;
  private listed = '';
  private field = h('input', 'rr-find', {
    type: 'search',
    placeholder: trans.__('filter metrics'),
    'aria-label': trans.__('show only metrics with this text; /…/ for a regular expression'),
    title: trans.__('show only metrics with this text; /…/ for a regular expression'),
    oninput: () => this.filter()
  });
  private said = h('span', 'rr-mt-count', { role: 'status' });
  private complaint = h('span', 'rr-complaint', { role: 'alert' });
  private list = h('div', 'rr-chips rr-mt-list', { role: 'group', 'aria-label': trans.__('metrics to add') });
  private others = h('details', 'rr-mt-others', {}, h('summary', '', {}, trans.__('others')), this.list);
  readonly node = h('div', 'rr-tools rr-mt-names', { hidden: true }, this.field, this.said, this.complaint, this.others);

  constructor(
    private choice: Choice,
    private changed: () => void
  ) {
    this.field.value = choice.text;
    const test = textFilter(choice.text);
    this.test = typeof test === 'string' ? null : test;
  }

  /** `all` is the number of all metrics. */
  refresh(all: number, { shown, others }: Picked): void {
    this.node.hidden = all <= FIRST_NAMES;
    this.others.hidden = others.length === 0;
    setText(this.said, trans.__('%1 of %2 metrics', grouped(shown.length), grouped(all)));
    const names = others.slice(0, LISTED).map(({ name }) => name);
    const key = JSON.stringify([names, others.length]);
    if (key === this.listed) {
      return;
    }
    this.listed = key;
    const left = others.length - names.length;
    this.list.replaceChildren(
      ...names.map(name => this.chip(name)),
      ...(left > 0 ? [h('span', 'rr-mt-count', {}, trans._n('and %2 more: find them with the filter', 'and %2 more: find them with the filter', left, grouped(left)))] : [])
    );
  }

  private chip(name: string): HTMLElement {
    const toggle = (): void => {
      const isGone = this.choice.pinned.delete(name);
      if (!isGone) {
        this.choice.pinned.add(name);
      }
      chip.setAttribute('aria-pressed', String(!isGone));
      this.changed();
    };
    const chip = h('button', 'rr-chip', { 'aria-pressed': String(this.choice.pinned.has(name)), onclick: toggle }, name);
    return chip;
  }

  private filter(): void {
    const test = textFilter(this.field.value);
    setText(this.complaint, typeof test === 'string' ? test : '');
    if (typeof test !== 'string') {
      this.choice.text = this.field.value;
      this.test = test;
      this.changed();
    }
  }
}
