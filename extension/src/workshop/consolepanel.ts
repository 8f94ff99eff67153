/** The teacher's console: how many need help, a tile for each learner, and what is said to all. */
import { type ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { trans } from '../translation';
import { h, setChildren, setText } from '../view/dom';
import { Sight } from '../view/sight';
import { message } from '../sidebar/clusters';
import type { OfferKind, Overview, Tile } from '../workshop_answers';
import type { Console } from './console';
import { arrange, isStale } from './order';
import { ResultsView } from './results';
import { Tell, type TellParts } from './tell';
import { TileView } from './tile';
import { attendance, counts, isShown, timeOf } from './words';

const TICK_MS = 1_000;
/** In a narrower panel, the column beside the tiles is above them, and folded. */
const NARROW_PX = 720;
const OPEN = 'rankroom workshop open FILE';

export class ConsolePanel extends Widget {
  private views = new Map<string, TileView>();
  private order: string[] = [];
  private isPointedAt = false;
  private name = h('h2', 'rr-ws-title');
  private where = h('span', 'rr-ws-where');
  private timer = h('span', 'rr-ws-timer', { role: 'timer', hidden: true });
  private counts = h('div', 'rr-ws-counts', { role: 'status' });
  private held = h('span', 'rr-hint', { hidden: true }, trans.__('Tiles keep their order while you point at a learner.'));
  private trouble = h('div', 'rr-trouble', { role: 'alert', hidden: true });
  private absent = h('div', 'rr-ws-absent', { hidden: true });
  private grid = h('div', 'rr-ws-grid', { role: 'list', 'aria-label': trans.__('learners') });
  private join = h('code', 'rr-ws-join');
  private empty = h(
    'div', 'rr-empty', { hidden: true },
    h('strong', '', {}, trans.__('No learners yet')),
    h('p', '', {}, trans.__('Each of them types this line in a terminal:')),
    this.join,
    h('p', 'rr-hint', {}, trans.__('They appear here as soon as they have a seat.'))
  );
  private place = h('input', 'rr-input', {
    'aria-label': trans.__('folder of the workshop'), placeholder: '/…', spellcheck: 'false', autocomplete: 'off'
  });
  private openButton = h('button', 'rr-button', { type: 'submit' }, trans.__('Open'));
  private choose = h(
    'form', 'rr-ws-choose', { hidden: true, onsubmit: (event: Event) => (event.preventDefault(), this.onOpen()) },
    h('p', '', {}, trans.__('Which workshop? Enter the folder that this terminal command created:')),
    h('code', 'rr-ws-join', {}, OPEN),
    h('div', 'rr-ws-row', {}, this.place, this.openButton)
  );
  private results: ResultsView;
  private tell: Tell;
  private aside: HTMLDetailsElement;
  private body: HTMLElement;
  private timing = 0;
  private sight: Sight;
  private wasSized = false;
  private folderSignal = new Signal<this, void>(this);

  constructor(
    private model: Console,
    parts: TellParts
  ) {
    super();
    this.addClass('rr-workshop');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Workshop console'));
    this.results = new ResultsView(exercise => model.choose(exercise));
    this.tell = new Tell(model, parts);
    this.aside = h(
      'details', 'rr-ws-aside', { open: true }, h('summary', '', {}, trans.__('To all learners')), this.tell.node,
      h('h3', '', {}, trans.__('Results of an exercise')), this.results.node
    );
    this.body = h('div', 'rr-ws-body', {}, this.aside, h('div', 'rr-ws-learners', {}, this.empty, this.grid, this.absent));
    this.node.append(
      h('div', 'rr-ws-top', {}, this.name, this.where, this.timer), h('div', 'rr-ws-second', {}, this.counts, this.held),
      this.trouble, this.choose, this.body
    );
    for (const event of ['pointerenter', 'pointerleave', 'focusin', 'focusout']) {
      this.grid.addEventListener(event, () => this.point());
    }
    model.changed.connect(this.refresh, this);
    this.sight = new Sight(this.node, isSeen => this.onSeen(isSeen));
    this.refresh();
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.sight.dispose();
      this.model.changed.disconnect(this.refresh, this);
      this.model.dispose();
      super.dispose();
    }
  }

  /** The workshop's folder, as it was given; '' without one. */
  get folder(): string {
    return this.model.folder;
  }

  /** Show the workshop in this folder. */
  open(folder: string): void {
    if (folder !== this.model.folder) {
      this.model.folder = folder;
      this.folderSignal.emit();
    }
  }

  /** Emitted when another folder is chosen. */
  get folderChanged(): ISignal<this, void> {
    return this.folderSignal;
  }

  protected onResize({ width }: Widget.ResizeMessage): void {
    if (!this.wasSized && width > 0) {
      this.wasSized = true;
      this.aside.open = width >= NARROW_PX;
    }
  }

  private refresh(): void {
    const { overview, trouble, isRefused, folder } = this.model;
    setText(this.trouble, trouble);
    // Without a folder nothing is wrong yet: the user is asked for one.
    this.trouble.hidden = trouble === '' || (isRefused && folder === '' && !overview);
    this.choose.hidden = !isRefused;
    this.node.dataset.known = String(overview !== null || trouble !== '');
    if (isRefused && document.activeElement !== this.place && this.place.value === '') {
      this.place.value = folder;
    }
    this.body.hidden = this.counts.hidden = !overview;
    // The last known state stays, and is marked as stale.
    this.body.classList.toggle('rr-is-stale', trouble !== '');
    setText(this.name, overview?.name ?? trans.__('Workshop'));
    setText(this.where, overview ? whereOf(overview) : '');
    this.held.hidden = true;
    if (overview) {
      this.fill(overview);
    }
    this.tick();
  }

  private fill(overview: Overview): void {
    const { tiles, absent, join } = overview;
    this.empty.hidden = tiles.length > 0;
    setText(this.join, join);
    setText(this.absent, absent.length ? trans.__('Not here yet: %1', absent.join(', ')) : '');
    this.absent.hidden = absent.length === 0;
    setChildren(this.counts, countsOf(overview, this.counts));
    const due = tiles.map(tile => tile.key);
    const isHeld = this.isPointedAt;
    this.order = arrange(this.order, due, isHeld);
    this.held.hidden = !isHeld || !isStale(this.order, due);
    const byKey = new Map(tiles.map(tile => [tile.key, tile]));
    [...this.views.keys()].filter(key => !byKey.has(key)).forEach(key => this.views.delete(key));
    tiles.forEach(tile => this.viewOf(tile).refresh(tile, this.model.now));
    setChildren(this.grid, this.order.map(key => this.views.get(key)!.node));
    this.results.refresh(overview);
    this.tell.refresh(overview.messages);
  }

  private viewOf(tile: Tile): TileView {
    const view = this.views.get(tile.key) ?? new TileView(tile, (to, what) => this.offer(to, what));
    this.views.set(tile.key, view);
    return view;
  }

  private async offer(tile: Tile, what: OfferKind): Promise<void> {
    const { user } = tile.shared;
    try {
      const said = await this.model.offer(user, what);
      this.tell.report(trans.__('%1: %2', user, said));
    } catch (error) {
      this.aside.open = true;
      this.tell.report(trans.__('%1: %2', user, message(error)), true);
    }
  }

  /** Note whether the user points at a tile, by pointer or by keyboard. */
  private point(): void {
    // A clicked button keeps the focus, but does not count as pointing.
    this.isPointedAt = this.grid.matches(':hover') || this.grid.querySelector(':focus-visible') !== null;
    if (!this.isPointedAt && this.model.overview) {
      this.fill(this.model.overview);
    }
  }

  private onOpen(): void {
    const folder = this.place.value.trim();
    if (folder) {
      this.open(folder);
    }
  }

  private tick(): void {
    const { overview, now } = this.model;
    const timer = overview?.timer ?? null;
    const isRunning = isShown(timer, now);
    setText(this.timer, isRunning ? timeOf(timer, now) : '');
    this.timer.hidden = !isRunning;
    this.timer.classList.toggle('rr-is-over', isRunning && now >= timer.until);
    overview?.tiles.forEach(tile => this.views.get(tile.key)?.tick(now));
  }

  private onSeen(isSeen: boolean): void {
    this.model.setSeen(isSeen);
    clearInterval(this.timing);
    if (isSeen) {
      this.timing = window.setInterval(() => this.tick(), TICK_MS);
    }
  }
}

/** The current lesson, or that the workshop is over; and warnings. */
function whereOf({ lesson_now: lesson, is_over: isOver, warnings }: Overview): string {
  const now = isOver ? trans.__('the workshop is over') : lesson ? trans.__('now: %1', lesson) : '';
  return [now, ...warnings].filter(Boolean).join(' · ');
}

/** Return a chip for each kind, and reuse those in the box. */
function countsOf(overview: Overview, box: HTMLElement): HTMLElement[] {
  const before = new Map([...box.children].map(node => [(node as HTMLElement).dataset.need, node as HTMLElement]));
  const chips = [{ need: 'all', text: attendance(overview) }, ...counts(overview.tiles)];
  return chips.map(({ need, text }) => {
    const chip = before.get(need) ?? h('span', 'rr-ws-chip', { 'data-need': need });
    setText(chip, text);
    return chip;
  });
}
