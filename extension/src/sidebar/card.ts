/** One cluster in the sidebar: its state, its ranks, and the actions on it. */
import type { Act } from '../api/clusters';
import type { ClusterStatus } from '../cluster_status';
import { trans } from '../translation';
import { h, handOn, setText } from '../view/dom';
import { setUnderWay, stepButton } from '../view/step';
import type { Clusters } from './clusters';
import { dragCell } from './drag';
import { Grid } from './grid';
import { expectedAt, isLive, isOver, secondsLeft, sign, stands, stateName, timeLeft, where } from './phrases';
import { type Doing, DOINGS, isOffered, isPossible } from './possible';

/** The actions that a card leaves to its owner. */
export interface CardActions {
  /** Act on the cluster, after a confirmation if variables would be lost. */
  act(card: ClusterStatus, act: Act, ranks?: string): Promise<void>;
  openLog(card: ClusterStatus): void;
  insertCell(card: ClusterStatus): void;
}

export class CardView {
  readonly node: HTMLElement;
  private sign = h('span', 'rr-sign', { 'aria-hidden': 'true' });
  private state = h('span', 'rr-card-state');
  private left = h('span', 'rr-left', { role: 'timer' });
  private where = h('div', 'rr-where');
  private words = h('div', 'rr-card-words', { role: 'status' });
  private remedy = h('div', 'rr-remedy');
  private complaint = h('span', '');
  private said = h(
    'div', 'rr-said-wrong', { role: 'alert', hidden: true }, this.complaint,
    h('button', 'rr-away', { 'aria-label': trans.__('dismiss this message'), onclick: () => this.clusters.putAway(this.card) }, '×')
  );
  private buttons: { [what in Doing]: HTMLButtonElement };
  private size = h('input', 'rr-size', { type: 'number', min: '1', required: true });
  private unit = h('span', '');
  private resize = h(
    'form', 'rr-resize', { hidden: true, onsubmit: (event: Event) => this.onResize(event) },
    h('label', '', {}, this.size, this.unit),
    h('button', 'rr-button', { type: 'submit' }, trans.__('Resize')),
    h('button', 'rr-button', { type: 'button', onclick: () => this.askSize(false) }, trans.__('Cancel'))
  );
  private grid: Grid;
  private ranks: HTMLElement;

  constructor(
    private card: ClusterStatus,
    private clusters: Clusters,
    private actions: CardActions
  ) {
    const act = (name: Act) => () => void this.actions.act(this.card, name);
    this.buttons = {
      insert: stepButton(
        trans.__('Insert cell'), trans.__('insert a cell that attaches the current notebook to these ranks'),
        () => this.actions.insertCell(this.card)
      ),
      interrupt: stepButton(trans.__('Interrupt'), trans.__('interrupt what the ranks run; their variables are kept'), act('interrupt')),
      log: stepButton(trans.__('Log'), trans.__('what the cluster’s processes have written'), () => this.actions.openLog(this.card)),
      restart: stepButton(trans.__('Restart…'), trans.__('restart the ranks, without their variables'), act('restart')),
      resize: stepButton(
        trans.__('Resize…'), trans.__('restart with another number of ranks, or of a site’s nodes'),
        () => this.askSize(this.resize.hidden)
      ),
      stop: stepButton(trans.__('Stop…'), trans.__('end the ranks'), act('stop'))
    };
    this.grid = new Grid(rank => void this.actions.act(this.card, 'restart', String(rank)));
    this.ranks = h('details', 'rr-card-ranks', { open: true }, h('summary', '', {}, trans.__('Ranks')), this.grid.node);
    const head = h(
      'div', 'rr-card-head', { title: trans.__('drag into a notebook to attach it to these ranks') },
      this.sign, h('strong', 'rr-card-name', {}, card.name), this.state, this.left
    );
    dragCell(head, () => this.card.name);
    this.node = h(
      'section', 'rr-card', { 'aria-label': trans.__('cluster %1', card.name), 'data-cluster': card.name },
      head, this.where, this.words, this.remedy, this.said,
      h('div', 'rr-actions', { role: 'group', 'aria-label': trans.__('actions for %1', card.name) }, ...Object.values(this.buttons)),
      this.resize, this.ranks
    );
  }

  refresh(card: ClusterStatus): void {
    const { clusters } = this;
    this.card = card;
    this.node.dataset.state = card.state;
    setText(this.sign, sign(card.state));
    this.sign.className = `rr-sign rr-card-is-${card.state}`;
    const under = clusters.actOn(card);
    setText(this.state, under === 'stop' ? stateName('ending') : stands(card));
    setText(this.where, where(card));
    setText(this.words, [card.words, expectedAt(card, clusters.now)].filter(Boolean).join(', '));
    setText(this.remedy, card.remedy);
    this.remedy.hidden = !card.remedy;
    setText(this.complaint, clusters.complaintOf(card));
    this.said.hidden = this.complaint.textContent === '';
    this.refreshButtons(card, under);
    this.grid.refresh(card, clusters.loadOf(card));
    this.ranks.hidden = card.ranks.length === 0 || isOver(card);
    this.tick();
  }

  /** Update the time left, which counts down. */
  tick(): void {
    const { now } = this.clusters;
    const left = secondsLeft(this.card, now);
    setText(this.left, timeLeft(this.card, now));
    this.left.classList.toggle('rr-is-short', left !== null && left < 600);
  }

  private refreshButtons(card: ClusterStatus, under: Act | null): void {
    for (const what of DOINGS) {
      this.buttons[what].hidden = !isOffered(card, what);
      setUnderWay(this.buttons[what], !isPossible(card, what, under));
    }
    const { restart, stop } = this.buttons;
    setText(restart, isOver(card) ? trans.__('Restart') : card.is_supervised ? trans.__('Restart…') : trans.__('Reconnect'));
    restart.title = card.is_supervised || isOver(card)
      ? trans.__('restart the ranks, without their variables')
      : trans.__('reconnect to the cluster; the ranks keep their variables');
    setText(stop, isOver(card) ? trans.__('Remove') : card.state === 'pending' ? trans.__('Cancel job…') : trans.__('Stop…'));
    stop.title = isOver(card) ? trans.__('remove it from this list') : trans.__('end the ranks; their variables are lost');
    if (!isLive(card)) {
      this.resize.hidden = true;
    }
  }

  private askSize(isAsked: boolean): void {
    if (!isAsked) {
      handOn(this.resize, () => this.buttons.resize.focus());
    }
    this.resize.hidden = !isAsked;
    if (isAsked) {
      const { is_remote: isRemote, nodes, size } = this.card;
      this.size.value = String(isRemote ? nodes : size);
      setText(this.unit, ` ${isRemote ? trans.__('nodes') : trans.__('ranks')}`);
      this.size.setAttribute('aria-label', isRemote ? trans.__('how many nodes') : trans.__('how many ranks'));
      this.size.select();
      this.size.focus();
    }
  }

  private onResize(event: Event): void {
    event.preventDefault();
    this.askSize(false);
    void this.actions.act(this.card, 'resize', this.size.value);
  }
}
