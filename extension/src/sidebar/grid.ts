/** The ranks of a cluster: the host, state and load of each. */
import type { ClusterStatus, RankStatus, Load } from '../cluster_status';
import { rankClass } from '../ranks';
import { trans } from '../translation';
import { focusOn, h, handOn, setChildren, setText } from '../view/dom';
import { shown } from './phrases';

/** Ranks shown at first; the others are shown on request. */
const FIRST = 16;

const SIGNS: { [state in RankStatus['state']]: string } = { starting: '◌', ready: '●', restarting: '↻', down: '✗' };

export class Grid {
  readonly node = h('div', 'rr-grid', { role: 'list', 'aria-label': trans.__('ranks') });
  private rows = new Map<number, Row>();
  private hosts = new Map<string, HTMLElement>();
  private isWhole = false;
  private more = h('button', 'rr-button rr-more', { onclick: () => this.showAll() });
  private last: { card: ClusterStatus; load: ReadonlyMap<number, Load> } | null = null;

  constructor(private restart: (rank: number) => void) {}

  refresh(card: ClusterStatus, load: ReadonlyMap<number, Load>): void {
    this.last = { card, load };
    // Ranks that are not ready are always shown.
    const seen = card.ranks.filter(rank => this.isWhole || rank.rank < FIRST || rank.state !== 'ready');
    const nodes: HTMLElement[] = [];
    let host = '';
    for (const rank of seen) {
      if (rank.host !== host) {
        host = rank.host;
        nodes.push(this.hostNode(host));
      }
      nodes.push(this.row(rank.rank).refresh(rank, load.get(rank.rank), card.state === 'ending'));
    }
    this.more.textContent = trans._n('show all %1 rank', 'show all %1 ranks', card.ranks.length);
    setChildren(this.node, seen.length < card.ranks.length ? [...nodes, this.more] : nodes);
  }

  private row(rank: number): Row {
    const row = this.rows.get(rank) ?? new Row(rank, this.restart);
    this.rows.set(rank, row);
    return row;
  }

  private hostNode(host: string): HTMLElement {
    const node = this.hosts.get(host) ?? h('div', 'rr-host', { role: 'presentation', title: host }, host || trans.__('no host yet'));
    this.hosts.set(host, node);
    return node;
  }

  private showAll(): void {
    this.isWhole = true;
    handOn(this.more, () => focusOn(this.node));
    if (this.last) {
      this.refresh(this.last.card, this.last.load);
    }
  }
}

class Row {
  private sign = h('span', 'rr-sign', { 'aria-hidden': 'true' });
  private device = h('span', 'rr-device');
  private fill = h('span', 'rr-fill');
  private bar = h('span', 'rr-load', { 'aria-hidden': 'true' }, this.fill);
  private percent = h('span', 'rr-percent');
  private memory = h('span', 'rr-memory');
  private note = h('div', 'rr-note');
  private again: HTMLButtonElement;
  private node: HTMLElement;

  constructor(
    private rank: number,
    restart: (rank: number) => void
  ) {
    const label = trans.__('restart rank %1, without its variables', rank);
    const onclick = (): void => void (this.again.getAttribute('aria-disabled') === 'true' || restart(rank));
    this.again = h('button', 'rr-again', { title: label, 'aria-label': label, onclick }, '↻');
    this.node = h(
      'div', `rr-rank-row ${rankClass(rank)}`, { role: 'listitem', 'data-rank': String(rank) },
      this.sign, h('span', 'rr-number', {}, String(rank)), this.device, this.bar, this.percent, this.memory, this.again,
      this.note
    );
  }

  refresh(rank: RankStatus, load: Load | undefined, isEnding: boolean): HTMLElement {
    const busy = rank.state === 'ready' ? shown(load) : null;
    setText(this.sign, SIGNS[rank.state]);
    this.sign.className = `rr-sign rr-rank-is-${rank.state}`;
    setText(this.device, rank.device === 'cpu' ? trans.__('CPU') : rank.device);
    this.fill.style.width = `${100 * (busy?.share ?? 0)}%`;
    setText(this.percent, busy?.percent ?? '');
    setText(this.memory, busy?.memory ?? '');
    setText(this.note, rank.state === 'down' ? rank.note : rank.state === 'ready' ? '' : stateOf(rank));
    this.note.hidden = this.note.textContent === '';
    this.again.setAttribute('aria-disabled', String(isEnding || rank.state === 'restarting' || rank.state === 'starting'));
    const place = trans.__('rank %1 on %2, %3, %4', this.rank, rank.host || trans.__('no host yet'), rank.device, stateOf(rank));
    const title = [place, trans.__('pid %1', rank.pid), busy?.title ?? ''].filter(Boolean).join('; ');
    if (this.node.title !== title) {
      this.node.title = title;
      this.node.setAttribute('aria-label', title);
    }
    return this.node;
  }
}

function stateOf({ state }: RankStatus): string {
  const names: { [state in RankStatus['state']]: string } = {
    starting: trans.__('starting'),
    ready: trans.__('ready'),
    restarting: trans.__('restarting'),
    down: trans.__('down')
  };
  return names[state] ?? state;
}
