/** The view of a run: its state, errors, each rank's log, metrics, timeline, profile, and rich outputs. */
import { MimeModel, type IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Panel, Widget } from '@lumino/widgets';

import type { Api } from '../api';
import { ERROR } from '../log/lines';
import { EVERYTHING } from '../log/rows';
import { filterOf, type TypedFilter } from '../log/typedfilter';
import { Ladder } from '../run/ladder';
import { TABS, type Memory, type Tab } from '../run/memories';
import type { RunModel } from '../run/model';
import { Prompts } from '../run/prompts';
import type { Runs } from '../run/runs';
import type { Run } from '../schema';
import { trans } from '../translation';
import { grouped } from '../words';
import { Displays } from './displays';
import { Frame, h } from './dom';
import { Failures } from './failures';
import { HangBanner } from './hang';
import { Header, type HeaderActions } from './header';
import { keepKeys } from './keys';
import { LogList } from './loglist';
import { MetricsTab } from './plots/metricstab';
import { ProfileTab } from './profiletab';
import { PromptLine } from './promptline';
import { Sight } from './sight';
import { Tabs } from './tabs';
import { Timeline } from './timeline/timeline';

const TICK = 1_000;
/** The places whose views of a run share their saved state. */
const CELL = 'cell';
export const PANEL = 'panel';

export interface RunViewOptions {
  run: Run;
  runs: Runs;
  api: Api;
  rendermime: IRenderMimeRegistry;
  isTrusted: boolean;
  /** True under a cell, false in a panel. */
  isInline: boolean;
  /** Open the run in a panel; null if it is in one, or if there are no panels. */
  open: ((run: Run, tab: Tab) => void) | null;
  /** What to show if the record cannot be read: the MIME bundle it was saved with. */
  fallback: ReadonlyPartialJSONObject | null;
}

export class RunView extends Panel {
  readonly model: RunModel;
  readonly isTrusted: boolean;
  private frame = new Frame(() => this.refresh());
  private header: Header;
  private hang: HangBanner;
  private failures: Failures;
  private list: LogList;
  private memory: Memory;
  /** The tab that this view shows; `memory` has the one chosen last in any view of the run in this place. */
  private shown: Tab;
  private typed: TypedFilter;
  private filter = EVERYTHING;
  private tabs: Tabs;
  private timeline: Timeline | null = null;
  private metrics: MetricsTab | null = null;
  private profile: ProfileTab | null = null;
  private prompt: PromptLine;
  private displays: Displays;
  private notes = new Widget();
  private fallback: RunViewOptions['fallback'];
  private instead: Widget | null = null;
  private sight: Sight;
  private ticking = 0;
  private letKeysGo: () => void;

  constructor(private options: RunViewOptions) {
    super();
    this.addClass('rr-view');
    this.toggleClass('rr-panel', !options.isInline);
    this.node.dataset.run = options.run.id;
    this.model = options.runs.acquire(options.run);
    this.isTrusted = options.isTrusted;
    this.fallback = options.fallback;
    this.memory = options.runs.memories.at(options.run.id, options.isInline ? CELL : PANEL);
    this.shown = this.memory.tab;
    this.typed = { ...this.memory.filter };
    this.tabs = new Tabs(TABS, tab => this.setTab(tab));
    const ladder = new Ladder(this.model, options.api);
    this.header = new Header(this.model, this.typed, {
      filter: () => this.applyFilter(),
      toError: () => this.toError(),
      interrupt: () => void ladder.take('interrupt'),
      isInterrupting: () => ladder.isUnderWay('interrupt'),
      toLog: () => this.list.focus(),
      open: this.opener(),
      tabs: this.tabs.node,
      now: () => options.api.now,
      downloadUrl: ranks => options.api.logUrl(this.model.id, ranks)
    });
    this.hang = new HangBanner(this.model, ladder, () => this.list.focus());
    this.failures = new Failures(this.model);
    this.list = new LogList(this.model, options.isInline, t => this.toMoment(t));
    this.prompt = new PromptLine(this.model, new Prompts(this.model, options.api), () => this.list.focus());
    this.displays = new Displays(this.model, options.rendermime, options.isTrusted);
    this.notes.addClass('rr-notes');
    const parts = [this.header, this.hang, this.failures, this.list, this.prompt, this.displays, this.notes];
    parts.forEach(part => this.addWidget(part));
    this.model.changed.connect(this.onChanged, this);
    this.model.profile.changed.connect(this.onChanged, this);
    this.letKeysGo = keepKeys(this.node);
    this.sight = new Sight(this.node, isSeen => this.onSeen(isSeen));
    this.applyFilter();
    this.refresh();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.sight.dispose();
    clearInterval(this.ticking);
    this.frame.cancel();
    this.letKeysGo();
    this.model.changed.disconnect(this.onChanged, this);
    this.model.profile.changed.disconnect(this.onChanged, this);
    this.options.runs.release(this.model);
    super.dispose();
  }

  /** Take over the notebook's copy of the run and its summary, which change when the run ends. */
  update(run?: Run, fallback: RunViewOptions['fallback'] = null): void {
    if (fallback) {
      this.fallback = fallback;
      this.instead?.dispose();
      this.instead = null;
      this.frame.request();
    }
    // The kernel knows that the run has ended even if a full disk keeps that from the record.
    const isNews = this.model.read === 0 || (run?.state !== 'running' && this.model.run.state === 'running');
    if (run && !this.model.isComplete && isNews) {
      this.model.run = { ...run, ranks: run.ranks.length ? run.ranks : this.model.run.ranks };
    }
    super.update();
  }

  /** Return the button at the right: open a panel; without panels, let the log grow in place; none in a panel. */
  private opener(): HeaderActions['open'] {
    const { open, isInline } = this.options;
    if (!isInline) {
      return null;
    }
    if (open) {
      return { label: trans.__('open in panel'), run: () => open(this.model.run, this.tab) };
    }
    return { label: trans.__('full height'), run: () => this.list.setInline(!this.toggleClass('rr-tall')) };
  }

  private applyFilter(): void {
    this.memory.filter = { ...this.typed };
    this.filter = filterOf(this.typed);
    this.list.setFilter(this.filter);
    this.timeline?.setRanks(this.filter.ranks);
    this.metrics?.setRanks(this.filter.ranks);
    this.frame.request();
  }

  private toError(): void {
    const line = this.model.log.lines.first(ERROR);
    this.setTab('logs');
    if (line >= 0) {
      if (!this.list.shows(line)) {
        this.header.showAll();
      }
      this.list.reveal(line);
    }
  }

  get tab(): Tab {
    return this.shown;
  }

  /** Show the log, the metrics, the timeline or the profile. */
  setTab(tab: Tab): void {
    this.shown = this.memory.tab = tab;
    this.refresh();
  }

  /** Go from a line of the log to its moment in the timeline. */
  private toMoment(t: number): void {
    this.setTab('timeline');
    this.timeline?.pointAt(t);
  }

  /** Go from a moment to the line of the log written nearest to it, by `rank` if it wrote any. */
  private toLog(t: number, rank: number | null): void {
    const line = this.model.log.lines.nearest(t, rank, each => this.model.spans.offset(each));
    this.setTab('logs');
    if (line >= 0) {
      this.list.reveal(line);
    }
  }

  private showTab(): void {
    const { model, tab } = this;
    const hasSpans = model.overview !== null || model.spans.count > 0 || model.spans.dropped.size > 0;
    if (tab === 'metrics' && !this.metrics) {
      this.metrics = new MetricsTab(model, this.options.api, this.memory.choice, this.memory.look);
      this.metrics.setRanks(this.filter.ranks);
      this.insertWidget(this.widgets.indexOf(this.displays), this.metrics);
    }
    if (tab === 'timeline' && !this.timeline) {
      const actions = {
        toLog: (t: number, rank: number | null) => this.toLog(t, rank),
        traceUrl: this.options.api.traceUrl(model.id)
      };
      this.timeline = new Timeline(model, this.memory.look, actions, this.options.isInline);
      this.timeline.setRanks(this.filter.ranks);
      this.insertWidget(this.widgets.indexOf(this.displays), this.timeline);
    }
    if (tab === 'profile' && !this.profile) {
      this.profile = new ProfileTab(model);
      this.insertWidget(this.widgets.indexOf(this.displays), this.profile);
    }
    this.metrics?.setHidden(tab !== 'metrics');
    this.timeline?.setHidden(tab !== 'timeline');
    this.profile?.setHidden(tab !== 'profile');
    this.list.setHidden(tab !== 'logs');
    this.node.dataset.tab = tab;
    this.list.setTimed(hasSpans);
    const shown = { logs: this.list, metrics: this.metrics, timeline: this.timeline, profile: this.profile }[tab];
    this.tabs.refresh(tab, this.thereAre(hasSpans), shown);
    this.metrics?.refresh();
    if (tab === 'timeline') {
      this.timeline?.refresh();
    }
    this.profile?.refresh();
    if (model.isComplete && hasSpans) {
      // Once the record is complete, the header names the rank that the others waited for.
      model.profile.refresh();
    }
  }

  /** Return the tabs that have content, and the current one. */
  private thereAre(hasSpans: boolean): Set<Tab> {
    const there: Tab[] = [
      'logs',
      ...(this.model.metricEvents ? ['metrics' as const] : []),
      ...(hasSpans ? ['timeline' as const, 'profile' as const] : [])
    ];
    return new Set([...there, this.tab]);
  }

  private onChanged(): void {
    this.frame.request();
  }

  private onSeen(isSeen: boolean): void {
    this.options.runs.see(this.model, isSeen);
    clearInterval(this.ticking);
    if (isSeen) {
      this.ticking = window.setInterval(() => this.model.isLive && this.refreshTimes(), TICK);
      this.frame.request();
    }
  }

  private refreshTimes(): void {
    this.header.refresh();
    this.hang.refresh();
    this.prompt.refresh();
  }

  private refresh(): void {
    if (this.isDisposed) {
      return;
    }
    const { model } = this;
    this.toggleClass('rr-refused', model.refusal !== '');
    this.node.dataset.state = model.run.state;
    this.node.dataset.complete = String(model.isComplete);
    this.refreshTimes();
    this.failures.refresh();
    this.list.refresh();
    this.displays.refresh(this.filter.ranks, this.filter.collapsed);
    this.showTab();
    this.sayNotes();
    if (model.refusal && !this.instead) {
      this.showFallback();
    } else if (!model.refusal && this.instead) {
      this.instead.dispose();
      this.instead = null;
    }
  }

  private sayNotes(): void {
    const { model } = this;
    const notes = [...(model.run.notes ?? [])];
    if (model.damaged) {
      notes.push(trans._n(
        '%2 damaged line of the record skipped; the rest is shown',
        '%2 damaged lines of the record skipped; the rest is shown',
        model.damaged,
        grouped(model.damaged)
      ));
    }
    const sentences = [
      ...(model.refusal ? [h('div', 'rr-refusal', { role: 'alert' }, this.refusalWords())] : []),
      ...(model.trouble ? [h('div', 'rr-trouble', { role: 'status' }, model.trouble)] : []),
      ...notes.map(note => h('div', 'rr-remark', {}, note))
    ];
    const key = sentences.map(node => node.textContent).join('\n');
    if (this.notes.node.dataset.key !== key) {
      this.notes.node.dataset.key = key;
      this.notes.node.replaceChildren(...sentences);
      this.notes.setHidden(sentences.length === 0);
    }
  }

  /** Why the record cannot be read, and what is shown in its place, if anything is. */
  private refusalWords(): string {
    const { refusal } = this.model;
    return fallbackType(this.fallback) ? `${refusal} ${trans.__('Below is the summary that was saved with the notebook.')}` : refusal;
  }

  /** Show what the notebook holds, as the record cannot be read. */
  private showFallback(): void {
    const { rendermime, isTrusted } = this.options;
    const data = this.fallback ?? {};
    const type = fallbackType(data);
    if (type) {
      const renderer = rendermime.createRenderer(type);
      renderer.addClass('rr-fallback');
      void renderer.renderModel(new MimeModel({ data, trusted: isTrusted }));
      this.addWidget(renderer);
      this.instead = renderer;
    }
  }
}

/** Return the type in which a notebook's copy of a run can be shown, if it has any. */
function fallbackType(data: RunViewOptions['fallback']): string | undefined {
  return ['text/html', 'text/plain'].find(name => data && name in data);
}
