/** The names of the lanes at the left of the timeline; ranks and some categories can be opened. */
import type { Lane } from '../../timeline/lanes';
import { rankClass } from '../../ranks';
import { trans } from '../../translation';
import { h, setChildren } from '../dom';

export class Gutter {
  readonly node = h('div', 'rr-tl-gutter', { role: 'group', 'aria-label': trans.__('lanes') });
  private shown = new Map<string, HTMLElement>();

  constructor(private toggle: (lane: Lane) => void) {}

  refresh(lanes: readonly Lane[], title: (lane: Lane) => string): void {
    const shown = new Map<string, HTMLElement>();
    for (const lane of lanes) {
      const known = this.shown.get(lane.key);
      // A lane that could not be opened may get content that can be.
      const isSame = known && (known.tagName === 'BUTTON') === (lane.isOpen !== null);
      const node = isSame ? known : this.make(lane);
      node.style.top = `${lane.y}px`;
      node.style.height = `${lane.height}px`;
      node.classList.toggle('rr-tl-low', lane.height < 16);
      node.title = title(lane);
      if (lane.isOpen !== null) {
        node.setAttribute('aria-expanded', String(lane.isOpen));
        (node.firstChild as HTMLElement).textContent = lane.isOpen ? '▾' : '▸';
      }
      shown.set(lane.key, node);
    }
    this.shown = shown;
    setChildren(this.node, [...shown.values()]);
  }

  private make(lane: Lane): HTMLElement {
    const isRank = lane.kind === 'rank';
    const name = `rr-tl-name rr-tl-${lane.kind} ${isRank ? rankClass(lane.rank) : ''}`;
    const label = isRank ? trans.__('rank %1', lane.label) : lane.label;
    if (lane.isOpen === null) {
      return h('div', name, {}, label);
    }
    const toggle = (): void => this.toggle(lane);
    return h('button', name, { onclick: toggle }, h('span', 'rr-tl-arrow', { 'aria-hidden': 'true' }), label);
  }
}
