/** A learner's tile: their state in signs and words, and what the teacher can offer them. */
import { trans } from '../translation';
import { h, setText } from '../view/dom';
import { setUnderWay, stepButton } from '../view/step';
import type { Offered, OfferKind, Tile } from '../workshop_answers';
import { handIcon } from './icon';
import { clock, exerciseOf, lessonOf, lookOf, lookWord, ranksOf, sign, waitingOf } from './words';

export class TileView {
  readonly node: HTMLElement;
  private sign = h('span', 'rr-sign', { 'aria-hidden': 'true' });
  private hand = h('span', 'rr-ws-hand', { role: 'img', 'aria-label': trans.__('hand up'), hidden: true });
  private name = h('strong', 'rr-ws-name');
  private state = h('span', 'rr-ws-state');
  private lesson = h('div', 'rr-ws-line');
  private exercise = h('div', 'rr-ws-line');
  private why = h('div', 'rr-ws-why', { hidden: true });
  private waiting = h('span', 'rr-ws-waiting');
  private ranks = h('span', '');
  private offered = h('div', 'rr-ws-line rr-ws-offered', { hidden: true });
  private catchUp: HTMLButtonElement;
  private reset: HTMLButtonElement;
  private tile: Tile;

  constructor(tile: Tile, offer: (tile: Tile, what: OfferKind) => Promise<void>) {
    this.tile = tile;
    const offering = (what: OfferKind, button: () => HTMLButtonElement) => async () => {
      setUnderWay(button(), true);
      await offer(this.tile, what).finally(() => setUnderWay(button(), false));
    };
    this.catchUp = stepButton(
      trans.__('Offer to catch up'),
      trans.__('offer to run the lesson’s solutions so far on the learner’s ranks'),
      offering('catch up', () => this.catchUp)
    );
    this.reset = stepButton(
      trans.__('Offer a reset'),
      trans.__('offer a fresh notebook and fresh ranks; the old notebook is kept'),
      offering('reset', () => this.reset)
    );
    handIcon.element({ container: this.hand });
    this.node = h(
      'article', 'rr-ws-tile', { role: 'listitem' },
      h('div', 'rr-ws-head', {}, this.sign, this.name, this.hand, this.state),
      this.lesson, this.exercise, this.why,
      h('div', 'rr-ws-foot', {}, this.ranks, this.waiting),
      this.offered,
      h('div', 'rr-ws-offers', {}, this.catchUp, this.reset)
    );
  }

  refresh(tile: Tile, now: number): void {
    this.tile = tile;
    const { shared } = tile;
    const look = lookOf(tile);
    this.node.dataset.need = tile.need;
    this.node.dataset.look = look;
    this.node.dataset.user = shared.user;
    this.node.setAttribute('aria-label', `${shared.user}: ${lookWord(look)}`);
    setText(this.sign, sign(look));
    setText(this.name, shared.user);
    this.name.title = shared.user;
    setText(this.state, lookWord(look));
    this.hand.hidden = shared.hand_since === 0;
    const isTold = shared.shares;
    setText(this.lesson, isTold ? lessonOf(shared) : trans.__('only the name and the hand are shared'));
    setText(this.exercise, isTold ? exerciseOf(shared) : '');
    setText(this.why, isTold ? shared.why : '');
    this.why.title = shared.why;
    this.why.hidden = !isTold || shared.why === '';
    setText(this.ranks, isTold ? ranksOf(shared) : '');
    this.ranks.classList.toggle('rr-ws-lacking', (shared.ranks?.alive ?? 0) < (shared.ranks?.of ?? 0));
    setText(this.offered, offeredWords(tile.offered));
    this.offered.hidden = !tile.offered;
    this.tick(now);
  }

  /** Update how long the learner has waited. */
  tick(now: number): void {
    setText(this.waiting, waitingOf(this.tile, now));
  }
}

function offeredWords(offered: Offered | null): string {
  if (!offered) {
    return '';
  }
  const at = clock(offered.at);
  return offered.what === 'catch up' ? trans.__('offered to catch up at %1', at) : trans.__('offered a reset at %1', at);
}
