/** The sidebar: the clusters, a form to start ranks, and the newest runs. */
import { Widget } from '@lumino/widgets';

import type { ClusterStatus } from '../cluster_status';
import type { Run } from '../schema';
import { trans } from '../translation';
import { h, setChildren, setText } from '../view/dom';
import { Sight } from '../view/sight';
import { setUnderWay, stepButton } from '../view/step';
import { CardView, type CardActions } from './card';
import { type Clusters, message } from './clusters';
import { StartForm } from './form';
import { ranksIcon } from './icon';
import { RunList } from './runlist';

const TICK_MS = 1_000;

export interface PanelActions extends CardActions {
  openRun(run: Run): void;
  /** The site that the form begins with. */
  defaultSite(): string;
}

export class RanksPanel extends Widget {
  private views = new Map<string, CardView>();
  private trouble = h('div', 'rr-trouble', { role: 'alert', hidden: true });
  private list = h('div', 'rr-cards');
  private wrong = h('div', 'rr-said-wrong', { role: 'alert', hidden: true });
  private begin = stepButton(
    trans.__('Start ranks here'), trans.__('start a rank per GPU of this machine, or two on its CPU'), () => this.startHere()
  );
  private empty = h(
    'div', 'rr-empty', { hidden: true },
    h('strong', '', {}, trans.__('No ranks yet')), h('p', '', {}, forNewcomers()), this.begin,
    h('p', 'rr-hint', {}, trans.__('or choose where and how many below.'))
  );
  private form: StartForm;
  private start: HTMLDetailsElement;
  private runs: RunList;
  private timer = 0;
  private isStarting = false;
  private sight: Sight;

  constructor(
    private clusters: Clusters,
    private actions: PanelActions
  ) {
    super();
    this.id = 'rankroom-ranks';
    this.addClass('rr-sidebar');
    this.title.caption = trans.__('Ranks');
    this.title.icon = ranksIcon;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Ranks'));
    this.begin.classList.add('rr-primary');
    this.form = new StartForm(clusters, () => (this.start.open = false));
    this.runs = new RunList(run => actions.openRun(run));
    const ontoggle = (): void => void (this.start.open && this.loadForm());
    this.start = h('details', 'rr-section', { ontoggle }, h('summary', '', {}, trans.__('Start ranks…')), this.form.node);
    const runs = h('details', 'rr-section', { open: true }, h('summary', '', {}, trans.__('Runs')), this.runs.node);
    this.node.append(h('h2', 'rr-sidebar-title', {}, trans.__('Ranks')), this.trouble, this.list, this.empty, this.wrong, this.start, runs);
    clusters.changed.connect(this.refresh, this);
    this.sight = new Sight(this.node, isSeen => this.onSeen(isSeen));
    this.refresh();
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.sight.dispose();
      this.form.dispose();
      this.clusters.changed.disconnect(this.refresh, this);
      super.dispose();
    }
  }

  /** Show the form, for the site from the settings. */
  openForm(): void {
    if (this.start.open) {
      this.loadForm();
    }
    this.start.open = true; // loads the form if it was closed
    this.start.querySelector<HTMLElement>('select, input')?.focus();
  }

  /** Start ranks on this machine, as many as by default. */
  async startHere(): Promise<void> {
    if (this.isStarting) {
      return;
    }
    this.isStarting = true;
    setUnderWay(this.begin, true);
    this.complain('');
    try {
      await this.clusters.start('local', {});
    } catch (error) {
      this.complain(message(error));
    } finally {
      this.isStarting = false;
      setUnderWay(this.begin, false);
    }
  }

  private loadForm(): void {
    void this.form.load(this.actions.defaultSite());
  }

  private complain(sentence: string): void {
    setText(this.wrong, sentence);
    this.wrong.hidden = sentence === '';
  }

  private refresh(): void {
    const { clusters } = this;
    setText(this.trouble, clusters.trouble);
    this.trouble.hidden = clusters.trouble === '';
    const there = new Set(clusters.all.map(card => card.name));
    [...this.views.keys()].filter(name => !there.has(name)).forEach(name => this.views.delete(name));
    setChildren(this.list, clusters.all.map(card => this.viewOf(card).node));
    clusters.all.forEach(card => this.viewOf(card).refresh(card));
    this.empty.hidden = !clusters.isKnown || clusters.all.length > 0;
    this.runs.refresh(clusters);
    this.node.dataset.known = String(clusters.isKnown);
  }

  private viewOf(card: ClusterStatus): CardView {
    const view = this.views.get(card.name) ?? new CardView(card, this.clusters, this.actions);
    this.views.set(card.name, view);
    return view;
  }

  private onSeen(isSeen: boolean): void {
    this.clusters.setSeen(isSeen);
    clearInterval(this.timer);
    if (isSeen) {
      this.timer = window.setInterval(() => this.views.forEach(view => view.tick()), TICK_MS);
    }
  }
}

function forNewcomers(): string {
  const ranks = trans.__('A rank is a Python process with a number: one for each GPU, or a few on this machine’s CPU.');
  return `${ranks} ${trans.__('A cell that starts with %1 runs on all of them.', '%%distributed')}`;
}
