/** Banner for a live run that is stuck: the reason, and the steps that can help, each harsher than the one before. */
import { Dialog, showDialog } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';

import { nameRanks, rankClass } from '../ranks';
import { awaited } from '../run/hang';
import type { Ladder } from '../run/ladder';
import type { RunModel } from '../run/model';
import type { Place } from '../schema';
import { trans } from '../translation';
import { h, setChildren, setText } from './dom';
import { Stacks } from './stacks';
import { setUnderWay, stepButton } from './step';

/** Maximum number of places that are listed, and of ranks with a restart button each; beyond it, they share one. */
const PLACES = 8;
const SINGLY = 3;

export class HangBanner extends Widget {
  private banner = h('div', 'rr-hang', { hidden: true });
  private text = h('span', '', { 'aria-live': 'off' });
  private list = h('ul', 'rr-places', { 'aria-live': 'polite' });
  private steps = h('div', 'rr-steps', { role: 'group', 'aria-label': trans.__('what can be done') });
  private restarts: HTMLButtonElement[] = [];
  private said = h('div', 'rr-said', { role: 'status', hidden: true });
  private shownPlaces = '';
  private shownRestarts = '';
  private stacks: Stacks;

  private interrupt = stepButton(
    trans.__('■ Interrupt'),
    trans.__('raise KeyboardInterrupt on every rank, and release those blocked in a collective; variables are kept'),
    () => this.ladder.take('interrupt')
  );
  private release = stepButton(
    trans.__('Release'),
    trans.__('end the collectives that ranks wait in, with an error on those ranks; variables are kept'),
    () => this.ladder.take('release')
  );
  private look = stepButton(
    trans.__('Show all stacks'),
    trans.__('where each thread of each rank is now; the ranks are not disturbed'),
    () => (this.ladder.stacks ? this.ladder.hideStacks() : this.ladder.look())
  );

  constructor(
    private model: RunModel,
    private ladder: Ladder,
    /** Called when the banner with the focus is hidden. */
    private refocus: () => void
  ) {
    super();
    this.addClass('rr-standstill');
    this.stacks = new Stacks(model, ladder);
    this.node.append(this.banner, this.said, this.stacks.node);
  }

  refresh(): void {
    const { model, ladder } = this;
    const { hang } = model;
    const sentence = hang?.text ?? (ladder.isOutlived ? trans.__('The run is still running although it was interrupted.') : '');
    if (!sentence && this.banner.contains(document.activeElement)) {
      this.refocus();
    }
    if (sentence && this.banner.hidden) {
      this.raise();
    }
    this.banner.hidden = sentence === '';
    // Only if it is a new one, so that text selected in it stays selected.
    if (sentence && this.text.dataset.said !== sentence) {
      this.text.dataset.said = sentence;
      this.text.replaceChildren(...quoted(sentence));
    }
    this.banner.classList.toggle('rr-held', hang?.places?.some(({ state }) => state === 'asks') ?? false);
    this.refreshPlaces(hang?.places ?? []);
    this.refreshRestarts(hang ? awaited(hang) : []);
    setUnderWay(this.interrupt, ladder.isUnderWay('interrupt'));
    setUnderWay(this.release, ladder.isUnderWay('release'));
    setUnderWay(this.look, ladder.isUnderWay('stacks'));
    this.look.textContent = ladder.stacks ? trans.__('Hide stacks') : trans.__('Show all stacks');
    this.look.setAttribute('aria-expanded', String(ladder.stacks !== null));
    this.said.hidden = ladder.said === '' || !model.isLive;
    setText(this.said, ladder.said);
    this.said.classList.toggle('rr-trouble', ladder.isTrouble);
    this.stacks.refresh();
    this.setHidden(this.banner.hidden && this.said.hidden && this.stacks.node.hidden);
  }

  /** Announce the hang: a new alert is read out once, and not again each time its seconds change. */
  private raise(): void {
    const alert = h('div', 'rr-why', { role: 'alert' }, this.text);
    this.banner.replaceChildren(alert, this.list, this.steps);
  }

  private refreshPlaces(found: Place[]): void {
    const key = JSON.stringify(found);
    if (key === this.shownPlaces) {
      return;
    }
    this.shownPlaces = key;
    const left = found.slice(PLACES).flatMap(({ ranks }) => ranks).sort((a, b) => a - b);
    this.list.hidden = found.length === 0;
    this.list.replaceChildren(
      ...found.slice(0, PLACES).map(({ ranks, words, code }) =>
        h(
          'li',
          ranks.length === 1 ? rankClass(ranks[0]) : 'rr-rank-many',
          {},
          h('span', 'rr-who', {}, nameRanks(ranks)),
          h('span', '', {}, words),
          code ? h('code', '', {}, code.trim().slice(0, 300)) : null
        )
      ),
      ...(left.length ? [h('li', 'rr-rank-many', {}, trans.__('and %1 elsewhere', nameRanks(left)))] : [])
    );
  }

  private refreshRestarts(ranks: number[]): void {
    const choices = ranks.length > SINGLY ? [ranks] : ranks.map(rank => [rank]);
    const key = JSON.stringify(choices);
    if (key !== this.shownRestarts) {
      this.shownRestarts = key;
      this.restarts = choices.map(choice => this.restartButton(choice));
      setChildren(this.steps, [this.interrupt, this.release, this.look, ...this.restarts]);
    }
    this.restarts.forEach((button, i) =>
      setUnderWay(button, this.ladder.isUnderWay('restart', choices[i]))
    );
  }

  private restartButton(ranks: number[]): HTMLButtonElement {
    const label = ranks.length > SINGLY
      ? trans._n('Restart %1 rank', 'Restart %1 ranks', ranks.length)
      : trans.__('Restart %1', nameRanks(ranks));
    const title = trans.__('restart the processes of %1; only their variables are lost', nameRanks(ranks));
    return stepButton(label, title, async () => {
      if (await confirmRestart(ranks)) {
        await this.ladder.take('restart', ranks);
      }
    });
  }
}

/** Convert a sentence to nodes, with the text between backticks as code. */
function quoted(sentence: string): Node[] {
  return sentence.split('`').map((part, i) =>
    i % 2 ? h('code', '', {}, part) : document.createTextNode(part)
  );
}

/** Ask whether the reader accepts that these ranks lose their variables. */
async function confirmRestart(ranks: number[]): Promise<boolean> {
  const { button } = await showDialog({
    title: trans.__('Restart %1?', nameRanks(ranks)),
    body: trans._n(
      'Its variables are lost. The other ranks keep theirs.',
      'Their variables are lost. The other ranks keep theirs.',
      ranks.length
    ),
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Restart') })]
  });
  return button.accept;
}
