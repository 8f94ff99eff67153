/** The stacks of each rank's threads, as they were when they were requested. */
import { nameRanks, rankClass } from '../ranks';
import { alikeStacks } from '../run/hang';
import type { Ladder } from '../run/ladder';
import type { RunModel } from '../run/model';
import { trans } from '../translation';
import { h } from './dom';
import { setUnderWay, stepButton } from './step';

/** Maximum characters of one rank's stacks, as a browser cannot lay out more at once. */
const MOST = 60_000;

export class Stacks {
  readonly node = h('div', 'rr-stacks', { hidden: true });
  private shown: ReadonlyMap<number, string> | null = null;
  private when = h('span', 'rr-when');
  private again = stepButton(trans.__('Refresh'), trans.__('look again'), () => this.ladder.look());
  private close = stepButton('✕', trans.__('hide the stacks'), () => this.ladder.hideStacks());
  private body = h('div', 'rr-stacks-body jp-RenderedText', {
    tabindex: '0',
    role: 'region',
    'aria-label': trans.__('stacks of all ranks')
  });

  constructor(
    private model: RunModel,
    private ladder: Ladder
  ) {
    this.node.append(h('div', 'rr-steps', {}, this.when, this.again, this.close), this.body);
  }

  refresh(): void {
    const { stacks, seenAt } = this.ladder;
    this.node.hidden = stacks === null;
    this.again.hidden = !this.model.isLive;
    setUnderWay(this.again, this.ladder.isUnderWay('stacks'));
    if (stacks === null || stacks === this.shown) {
      return;
    }
    this.shown = stacks;
    this.when.textContent = trans.__('stacks at %1', seenAt.toLocaleTimeString());
    this.body.replaceChildren(
      ...alikeStacks(stacks).flatMap(([ranks, text]) => [
        h('div', `rr-who ${ranks.length === 1 ? rankClass(ranks[0]) : 'rr-rank-many'}`, {}, nameRanks(ranks)),
        h('pre', '', {}, text.length > MOST ? `${text.slice(0, MOST)}\n…` : text)
      ])
    );
  }
}
