/** The learner's status bar item: the hand, the timer, open offers, and whether the learner does not share. */
import { Widget } from '@lumino/widgets';

import { trans } from '../translation';
import { h, setText } from '../view/dom';
import { handIcon } from './icon';
import type { Seat } from './seat';
import { isShown, timeOf } from './words';

const TICK_MS = 1_000;

export class SeatStatus extends Widget {
  private words = h('span', '');
  private hand: HTMLButtonElement;
  private open: HTMLButtonElement;
  private ticking: number;

  constructor(
    private seat: Seat,
    open: () => void
  ) {
    super();
    this.addClass('rr-ws-status');
    const icon = h('span', 'rr-ws-hand', { 'aria-hidden': 'true' });
    handIcon.element({ container: icon });
    this.hand = h('button', 'rr-status-button rr-ws-status-hand', { onclick: () => void seat.hand(!seat.isHandUp) }, icon, this.words);
    this.open = h('button', 'rr-status-button', { title: trans.__('show the workshop'), onclick: open });
    this.node.append(this.hand, this.open);
    seat.changed.connect(this.tick, this);
    this.ticking = window.setInterval(() => this.tick(), TICK_MS);
    this.tick();
  }

  dispose(): void {
    if (!this.isDisposed) {
      clearInterval(this.ticking);
      this.seat.changed.disconnect(this.tick, this);
      super.dispose();
    }
  }

  private tick(): void {
    const { own, now, isHandUp } = this.seat;
    setText(this.words, isHandUp ? trans.__('hand up') : trans.__('raise hand'));
    this.hand.setAttribute('aria-pressed', String(isHandUp));
    this.hand.title = isHandUp ? trans.__('lower your hand') : trans.__('your teacher sees it at once');
    const parts = [
      isShown(own.timer, now) ? timeOf(own.timer, now) : '',
      own.offers.length ? trans._n('%1 offer', '%1 offers', own.offers.length) : '',
      own.shared?.shares === false ? trans.__('not shared') : ''
    ].filter(Boolean);
    setText(this.open, parts.join(' · ') || trans.__('workshop'));
  }
}
