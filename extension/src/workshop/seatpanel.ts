/** The learner's panel: the hand, what the teacher says and offers, and what the learner shares. */
import { Widget } from '@lumino/widgets';

import { trans } from '../translation';
import { message } from '../sidebar/clusters';
import { h, setChildren, setText } from '../view/dom';
import { setUnderWay, stepButton } from '../view/step';
import type { Message, Offer, Own } from '../workshop_answers';
import { handIcon } from './icon';
import type { Offers } from './offers';
import type { Seat } from './seat';
import { clock, isShown, offerKey, offerWords, sharedList, timeOf } from './words';

const TICK_MS = 1_000;

export interface SeatActions {
  openRun(run: string): void;
}

export class SeatPanel extends Widget {
  private name = h('strong', '');
  private teacher = h('div', 'rr-where');
  private timer = h('div', 'rr-ws-timer', { role: 'timer', hidden: true });
  private trouble = h('div', 'rr-trouble', { role: 'alert', hidden: true });
  private ending = h('div', 'rr-trouble', { role: 'alert', hidden: true });
  private complaint = h('div', 'rr-said-wrong', { role: 'alert', hidden: true });
  private hand = stepButton('', trans.__('your teacher sees it at once'), () => this.seat.hand(!this.seat.isHandUp));
  private handWords = h('div', 'rr-hint', { role: 'status' });
  private offers = h('div', 'rr-ws-offered-list');
  private messages = h('div', 'rr-ws-messages', { role: 'log', 'aria-label': trans.__('from your teacher') });
  private noMessage = h('p', 'rr-nothing', {}, trans.__('Nothing yet.'));
  private about = h('p', 'rr-ws-about');
  private list = h('dl', 'rr-ws-shared');
  private share = stepButton('', '', () => this.seat.share(this.seat.own.shared?.shares === false));
  private views = new Map<string, HTMLElement>();
  private cells = new Map<string, HTMLElement>();
  private ticking: number;

  constructor(
    private seat: Seat,
    private taking: Offers,
    private actions: SeatActions
  ) {
    super();
    this.id = 'rankroom-workshop';
    this.addClass('rr-sidebar');
    this.addClass('rr-ws-seat');
    this.title.caption = trans.__('Workshop');
    this.title.icon = handIcon;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Workshop'));
    const section = (title: string, ...nodes: HTMLElement[]): HTMLElement =>
      h('details', 'rr-section', { open: true }, h('summary', '', {}, title), h('div', 'rr-ws-inside', {}, ...nodes));
    this.node.append(
      h('h2', 'rr-sidebar-title', {}, trans.__('Workshop')), this.trouble, this.ending,
      h('div', 'rr-card', {}, this.name, this.teacher, this.timer, this.hand, this.handWords, this.complaint, this.offers),
      section(trans.__('From your teacher'), this.noMessage, this.messages),
      section(trans.__('What is shared'), this.about, this.list, this.share)
    );
    seat.changed.connect(this.refresh, this);
    this.ticking = window.setInterval(() => this.tick(), TICK_MS);
    this.refresh();
  }

  dispose(): void {
    if (!this.isDisposed) {
      clearInterval(this.ticking);
      this.seat.changed.disconnect(this.refresh, this);
      super.dispose();
    }
  }

  private refresh(): void {
    const { own, trouble, complaint, isHandUp } = this.seat;
    setText(this.name, own.name || trans.__('Workshop'));
    setText(this.teacher, own.teacher ? trans.__('with %1', own.teacher) : '');
    setText(this.ending, own.ends ? endWords(own) : '');
    this.ending.hidden = own.ends === 0;
    setText(this.trouble, trouble);
    this.trouble.hidden = trouble === '';
    setText(this.complaint, complaint);
    this.complaint.hidden = complaint === '';
    setText(this.hand, isHandUp ? trans.__('Lower your hand') : trans.__('Raise your hand'));
    this.hand.setAttribute('aria-pressed', String(isHandUp));
    this.hand.classList.toggle('rr-primary', !isHandUp);
    setChildren(this.offers, own.offers.map(offer => this.viewOf(offerKey(offer), () => this.offerNode(offer))));
    setChildren(this.messages, own.messages.map(each => this.viewOf(each.id, () => this.messageNode(each))));
    this.noMessage.hidden = own.messages.length > 0;
    const known = new Set([...own.offers.map(offerKey), ...own.messages.map(({ id }) => id)]);
    [...this.views.keys()].filter(id => !known.has(id)).forEach(id => this.views.delete(id));
    this.refreshShared(own);
    this.tick();
  }

  private refreshShared({ shared, folder }: Own): void {
    const isOn = shared?.shares !== false;
    setText(this.about, isOn ? sharedWords() : trans.__('Your teacher sees your name and your hand, and nothing else of you.'));
    const rows = shared ? sharedList(shared, this.seat.now) : [];
    setChildren(this.list, rows.flatMap(([name, value]) => [this.cell('dt', name, name), this.cell('dd', name, value)]));
    this.list.hidden = this.about.hidden = this.share.hidden = shared === null;
    this.list.title = folder;
    setText(this.share, isOn ? trans.__('Stop sharing') : trans.__('Share my progress'));
    this.share.title = isOn
      ? trans.__('from then on, only your name and your hand are shared')
      : trans.__('your teacher sees again what is listed here');
  }

  /** Return the list's cell for a name, or for its value. */
  private cell(kind: 'dt' | 'dd', name: string, text: string): HTMLElement {
    const key = `${kind} ${name}`;
    const cell = this.cells.get(key) ?? h(kind, '');
    this.cells.set(key, cell);
    setText(cell, text);
    return cell;
  }

  private tick(): void {
    const { own, now, isHandUp } = this.seat;
    const isRunning = isShown(own.timer, now);
    setText(this.timer, isRunning ? timeOf(own.timer!, now) : '');
    this.timer.hidden = !isRunning;
    this.timer.classList.toggle('rr-is-over', isRunning && now >= own.timer!.until);
    const since = own.shared?.hand_since ?? 0;
    setText(this.handWords, isHandUp ? trans.__('Your hand has been up since %1.', clock(since)) : '');
  }

  /** Return the node already made for this id, if any, so that a selection or an action in progress in it stays. */
  private viewOf(id: string, make: () => HTMLElement): HTMLElement {
    const view = this.views.get(id) ?? make();
    this.views.set(id, view);
    return view;
  }

  private offerNode(offer: Offer): HTMLElement {
    const [title, words] = offerWords(offer);
    const doIt = stepButton(trans.__('Do it'), '', async () => {
      setUnderWay(doIt, true);
      this.seat.complain('');
      await this.taking.take(offer).catch(error => this.seat.complain(message(error)));
      setUnderWay(doIt, false);
    });
    const notNow = stepButton(trans.__('Not now'), '', () => this.seat.close(offer, false));
    doIt.classList.add('rr-primary');
    return h(
      'div', 'rr-ws-offer', { 'data-offer': offer.what }, h('strong', '', {}, title), h('p', '', {}, words),
      h('div', 'rr-actions', {}, doIt, notNow)
    );
  }

  private messageNode(told: Message): HTMLElement {
    const time = h('time', 'rr-hint', {}, clock(told.at));
    if (told.kind === 'cell') {
      return h(
        'article', 'rr-ws-message', { 'data-kind': 'cell' }, time, h('div', '', {}, told.text || trans.__('A cell for your notebook:')),
        h('pre', 'rr-script', { tabindex: '0', 'aria-label': trans.__('cell') }, told.source ?? ''),
        h('div', 'rr-actions', {}, stepButton(
          trans.__('Insert below'), trans.__('below the active cell of your notebook; it is not run'), () => this.taking.insert(told)
        ))
      );
    }
    if (told.kind === 'run') {
      const open = stepButton(trans.__('Open'), trans.__('your teacher’s view of a run'), () => this.actions.openRun(told.run ?? ''));
      return h(
        'article', 'rr-ws-message', { 'data-kind': 'run' }, time, h('div', '', {}, trans.__('A run to look at: %1', told.text)),
        h('div', 'rr-actions', {}, open)
      );
    }
    return h('article', 'rr-ws-message', { 'data-kind': 'text' }, time, h('div', 'rr-ws-text', {}, told.text));
  }
}

function sharedWords(): string {
  return trans.__(
    'Your teacher sees this of you, and other learners do not. Nothing else leaves your account: no code but that first line, no output, no files.'
  );
}

function endWords({ ends }: Own): string {
  return trans.__('The workshop ends at %1, and your ranks and this JupyterLab with it. Your notebooks are kept.', clock(ends));
}
