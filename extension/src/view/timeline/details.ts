/** Details of the selection: a span, a collective, or a time range. */
import type { Collective } from '../../timeline/collectives';
import type { Spot } from '../../timeline/find';
import { whenOf } from '../../timeline/look';
import { argsOf, arrivals, title, who } from '../../timeline/phrases';
import { lasting, type Range } from '../../timeline/range';
import { catName, type Spans } from '../../timeline/spans';
import { totals } from '../../timeline/totals';
import { trans } from '../../translation';
import { rankClass } from '../../ranks';
import { exactMoment } from '../../words';
import { h, handOn } from '../dom';

export interface DetailActions {
  zoomTo(what: Range): void;
  toLog(t: number, rank: number | null): void;
  clear(): void;
  choose(rank: number, t: number): void;
  /** Give the focus to the timeline. */
  leave(): void;
}

export class Details {
  readonly node = h('div', 'rr-tl-details', { hidden: true, role: 'region', 'aria-label': trans.__('selection'), 'aria-live': 'polite' });
  private key = '';
  /** The totals of the selected range, not read out at each change, as they grow with a live run. */
  private sums = h('div', '', { 'aria-live': 'off' });
  private summed = -1;

  constructor(
    private spans: () => Spans,
    private actions: DetailActions
  ) {}

  refresh(chosen: Spot | null, collective: Collective | null, part: Range | null, ranks: readonly number[]): void {
    const key = JSON.stringify([chosen, collective && [collective.last, collective.ranks.length], part, ranks]);
    const isOther = key !== this.key;
    if (isOther) {
      this.key = key;
      // Its buttons are replaced.
      handOn(this.node, () => this.actions.leave());
      this.node.hidden = !chosen && !part;
      this.node.replaceChildren(...(chosen ? this.span(chosen, collective) : part ? this.part(part) : []));
    }
    const { version } = this.spans();
    if (part && !chosen && (isOther || version !== this.summed)) {
      this.summed = version;
      this.sums.replaceChildren(this.totals(part, ranks));
    }
  }

  private span(spot: Spot, collective: Collective | null): HTMLElement[] {
    const spans = this.spans();
    const columns = spans.columns(spot.rank, spot.cat);
    const when = whenOf(columns, spot.i);
    const name = spans.name(spot.rank, columns.name[spot.i]);
    const facts: Array<[string, string]> = [
      [trans.__('rank'), String(spot.rank)],
      [trans.__('category'), catName(spot.cat)],
      [trans.__('begins'), exactMoment(when.from, when.to - when.from)],
      [trans.__('lasts'), lasting(when.to - when.from)],
      ...argsOf(name)
    ];
    return [
      this.head(name.name, when, spot.rank),
      ...(collective ? this.collective(collective) : []),
      h('div', 'rr-tl-facts', {}, ...facts.map(([key, value]) => h('span', '', {}, h('span', 'rr-tl-fact', {}, key), value)))
    ];
  }

  private head(text: string, when: Range, rank: number | null): HTMLElement {
    return h(
      'div', 'rr-tl-head', {},
      h('b', '', {}, text),
      h('button', 'rr-button', { onclick: () => this.actions.zoomTo(when) }, trans.__('zoom to it')),
      h(
        'button', 'rr-button', { title: trans.__('the line of the log nearest to this moment (L)'), onclick: () => this.actions.toLog(when.from, rank) },
        trans.__('to the log')
      ),
      h('button', 'rr-button', { title: trans.__('clear the selection (Escape)'), 'aria-label': trans.__('close'), onclick: () => this.actions.clear() }, '✕')
    );
  }

  private collective(one: Collective): HTMLElement[] {
    const rows = arrivals(one).map(({ rank, after, wait, transfer, isLast }) =>
      h(
        'tr', isLast ? 'rr-tl-last' : '', {},
        h('th', rankClass(rank), { scope: 'row' }, h(
          'button', 'rr-tl-go',
          { title: trans.__('show rank %1’s part', rank), onclick: () => this.actions.choose(rank, one.starts[one.ranks.indexOf(rank)]) },
          trans.__('rank %1', rank)
        )),
        h('td', '', {}, after ? `+${lasting(after)}` : trans.__('first')),
        h('td', '', {}, lasting(wait)),
        h('td', '', {}, lasting(transfer)),
        h('td', '', {}, isLast && one.ranks.length > 1 ? trans.__('← last') : '')
      )
    );
    const heads = ['', trans.__('arrived'), trans.__('waited'), trans.__('transfer'), ''];
    return [
      h('p', 'rr-tl-who', {}, h('span', '', {}, `${title(one)} #${one.n}: `), who(one)),
      h('div', 'rr-tl-arrivals', { tabindex: '0', role: 'region', 'aria-label': trans.__('arrivals') },
        h('table', '', {},
          h('thead', '', {}, h('tr', '', {}, ...heads.map(text => h('th', '', {}, text)))),
          h('tbody', '', {}, ...rows)))
    ];
  }

  private part(part: Range): HTMLElement[] {
    const length = part.to - part.from;
    const text = trans.__('%1 to %2: %3', exactMoment(part.from, length), exactMoment(part.to, length), lasting(length));
    return [this.head(text, part, null), this.sums];
  }

  /** Return a table of the time of each category. */
  private totals(part: Range, ranks: readonly number[]): HTMLElement {
    const length = part.to - part.from;
    const all = totals(this.spans(), part, ranks);
    const rows = all.map(({ cat, count, sum }) =>
      h('tr', '', {},
        h('th', '', { scope: 'row' }, catName(cat)),
        h('td', '', {}, count.toLocaleString('en')),
        h('td', '', {}, lasting(sum)),
        h('td', '', {}, lasting(sum / Math.max(1, ranks.length))),
        h('td', '', {}, length > 0 ? `${((100 * sum) / length / Math.max(1, ranks.length)).toFixed(1)} %` : '–')));
    const heads = ['', trans.__('spans'), trans.__('time of all ranks'), trans.__('per rank'), trans.__('of the range')];
    return all.length
      ? h('table', 'rr-tl-totals', {},
          h('thead', '', {}, h('tr', '', {}, ...heads.map(text => h('th', '', {}, text)))),
          h('tbody', '', {}, ...rows))
      : h('p', '', {}, trans.__('No spans in this range.'));
  }
}
