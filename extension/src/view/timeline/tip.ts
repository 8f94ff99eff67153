/** The tooltip for what is under the pointer. */
import type { Collective } from '../../timeline/collectives';
import type { Spot } from '../../timeline/find';
import { argsOf } from '../../timeline/phrases';
import { lasting } from '../../timeline/range';
import { catName, type Spans } from '../../timeline/spans';
import { trans } from '../../translation';
import { exactMoment } from '../../words';
import { h } from '../dom';

export class Tip {
  readonly node = h('div', 'rr-tl-tip', { hidden: true, 'aria-hidden': 'true' });

  dispose(): void {
    this.node.remove();
  }

  hide(): void {
    this.node.hidden = true;
  }

  span(spans: Spans, { rank, cat, i }: Spot, collective: Collective | null, x: number, y: number): void {
    const { start, dur, name } = spans.columns(rank, cat);
    const said = spans.name(rank, name[i]);
    const facts = [
      [trans.__('rank'), `${rank} · ${catName(cat)}`],
      [trans.__('begins'), exactMoment(start[i], dur[i])],
      [trans.__('lasts'), lasting(dur[i])],
      ...argsOf(said)
    ];
    const at = collective ? collective.ranks.indexOf(rank) : -1;
    if (collective && at >= 0 && collective.ranks.length > 1) {
      const waited = collective.cuts[at] - collective.starts[at];
      const words = collective.givenUp.includes(rank)
        ? trans.__('%1 for ranks that never arrived', lasting(waited))
        : trans.__('%1 for rank %2', lasting(waited), collective.straggler);
      const hasLeft = collective.ends[at] < collective.last;
      const not = hasLeft ? trans.__('no, finished before rank %1 arrived', collective.straggler) : trans.__('no, arrived last');
      facts.push([trans.__('waited'), waited ? words : not]);
    }
    this.show([said.name, ...facts.map(([key, value]) => `${key}: ${value}`)], x, y);
  }

  /** Show the tooltip beside a place in the window, within its edges. */
  show([first, ...others]: readonly [string, ...Array<string | Node>], x: number, y: number): void {
    this.node.replaceChildren(h('b', '', {}, first.slice(0, 300)), ...others.map(line => h('div', '', {}, line)));
    this.node.hidden = false;
    if (!this.node.isConnected) {
      // Inside the view, it would increase the height of the cell's output.
      document.body.append(this.node);
    }
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const left = x + 14 + width > innerWidth ? x - 10 - width : x + 14;
    const top = y + 16 + height > innerHeight ? y - 10 - height : y + 16;
    this.node.style.left = `${Math.max(0, left)}px`;
    this.node.style.top = `${Math.max(0, top)}px`;
  }
}
