/** The metrics of a run: a plot for each, all over the same steps or the same time. */
import { Widget } from '@lumino/widgets';

import type { NameInfo } from '../../metrics/answer';
import type { Choice } from '../../metrics/choice';
import { Comparison, type RunsServer } from '../../metrics/comparison';
import { metricsCsv } from '../../metrics/csv';
import { CURVES, type LineChoice } from '../../metrics/lines';
import { pick } from '../../metrics/pick';
import type { Colours } from '../../metrics/plotstyle';
import { MetricsSource, type Sought } from '../../metrics/source';
import type { RunModel } from '../../run/model';
import { css } from '../../timeline/colours';
import type { Look } from '../../timeline/look';
import { trans } from '../../translation';
import { Frame, h, setChildren } from '../dom';
import { nativeObserver } from '../sight';
import type { Movable } from '../timeline/input';
import { readTheme, type Theme } from '../timeline/theme';
import { ComparedRuns } from './comparedruns';
import { Controls } from './controls';
import { NamePicker } from './namepicker';
import { PlotView, type Shown } from './plot';
import { PlotTip } from './plottip';
import { Told } from './told';

/** Minimum pixels per bucket, with few curves and with many. */
const BUCKET = { few: 1, many: 2 };
const LEAST_POINTS = 200;
/** How long a file's URL is valid for the browser to read it. */
const KEPT_MS = 60_000;
const MOST_POINTS = 1_200;
const HELP = (): string =>
  trans.__('W and S zoom, A and D move, arrows go from point to point, 0 and Escape show all.');

let tabs = 0;

export class MetricsTab extends Widget {
  private source: MetricsSource;
  private comparison: Comparison;
  private ranks: ReadonlySet<number> | null = null;
  private plots = new Map<string, PlotView>();
  private cursor: number | null = null;
  private frame = new Frame(() => this.paint());
  private observer = new ResizeObserver(() => this.frame.request());
  private themed = new MutationObserver(() => this.frame.request());
  private sight = new (nativeObserver())(entries => this.onSight(entries), { rootMargin: '150px' });
  private movable: Movable;

  private grid = h('div', 'rr-mt-grid', { role: 'group', 'aria-label': trans.__('metrics') });
  private help = h('span', 'rr-hidden', {}, HELP());
  private tip = new PlotTip();
  private controls: Controls;
  private runs: ComparedRuns;
  private picker: NamePicker;
  private told: Told;

  constructor(
    private model: RunModel,
    private server: RunsServer,
    private choice: Choice,
    private look: Look
  ) {
    super();
    this.addClass('rr-metrics');
    this.source = new MetricsSource(model, server);
    this.source.changed.connect(this.refresh, this);
    this.comparison = new Comparison(server);
    this.comparison.changed.connect(this.refresh, this);
    const changed = (): void => this.frame.request();
    this.controls = new Controls(choice, { changed, fit: () => this.showAll(), download: () => this.download() });
    this.picker = new NamePicker(choice, changed);
    this.runs = new ComparedRuns(model, server, this.comparison, choice, changed);
    this.told = new Told(model, this.source);
    this.movable = {
      get range() {
        return choice.window.range;
      },
      zoom: (at, factor) => choice.window.zoom(at, factor),
      pan: by => choice.window.pan(by),
      select: part => choice.window.select(part)
    };
    this.help.id = `rr-mt-help-${++tabs}`;
    const { notes, empty, lasts } = this.told;
    this.node.append(
      this.controls.node, this.runs.node, this.picker.node, notes, empty, this.grid, lasts, this.tip.said, this.help
    );
    this.observer.observe(this.grid);
    this.themed.observe(document.body, { attributes: true, attributeFilter: ['data-jp-theme-name', 'data-jp-theme-light'] });
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.source.dispose();
      this.comparison.dispose();
      this.frame.cancel();
      this.tip.dispose();
      this.observer.disconnect();
      this.themed.disconnect();
      this.sight.disconnect();
      super.dispose();
    }
  }

  /** Show the current metrics; request and paint nothing while hidden. */
  refresh(): void {
    if (this.isVisible) {
      this.frame.request();
    }
  }

  setRanks(ranks: ReadonlySet<number> | null): void {
    this.ranks = ranks;
    this.refresh();
  }

  protected onAfterShow(): void {
    this.refresh();
  }

  protected onAfterAttach(): void {
    this.refresh();
  }

  protected onAfterHide(): void {
    this.tip.hide();
  }

  private paint(): void {
    if (this.isDisposed || this.node.offsetParent === null || document.visibilityState === 'hidden') {
      return;
    }
    const { choice, source, comparison } = this;
    const names = source.names ?? [];
    comparison.set(choice.compared ?? this.model.run.compare ?? []);
    choice.isComparing = comparison.others.length > 0;
    const picked = pick(names, this.ranks, this.picker.test, choice.pinned);
    this.setExtent(picked.shown);
    this.setPlots(picked.shown);
    this.picker.refresh(names.length, picked);
    const sought = this.sought();
    source.refresh(sought);
    comparison.refresh(sought);
    const known = source.names ? comparison.notes(new Set(names.map(({ name }) => name))) : [];
    this.told.refresh(picked.shown.length, this.picker.test !== null, known);
    const isMany = picked.shown.some(({ ranks }) => this.of(ranks).length > 1);
    const chosen = this.lineChoice(picked.shown);
    this.controls.refresh({ isThere: picked.shown.length > 0, isMany, isMean: chosen.isMean });
    this.refreshRuns(picked.shown, chosen);
    const theme = readTheme(this.node);
    picked.shown.forEach(info => this.paintPlot(info, chosen, coloursOf(theme), theme.key));
    this.told.refreshLasts([...this.plots.values()]);
    const { range } = choice.window;
    Object.assign(this.node.dataset, {
      from: String(range.from), to: String(range.to), answers: String(source.version),
      ready: String(source.isUpToDate(sought) && comparison.isReady(sought) && [...this.plots.values()].some(({ isSeen }) => isSeen))
    });
  }

  private paintPlot(info: NameInfo, chosen: LineChoice, colours: Colours, key: string): void {
    const { axis, window } = this.choice;
    const plot = this.plots.get(info.name)!;
    const shownOf = (source: Pick<MetricsSource, 'metric'>): Shown => {
      const whole = source.metric(info.name, axis, null);
      return { whole, metric: window.isFitted ? whole : source.metric(info.name, axis, window.range) };
    };
    plot.dress(info, shownOf(this.source), chosen, this.comparison.others.map(shownOf));
    if (plot.isSeen) {
      plot.paint(colours, key, this.cursor);
    }
  }

  /** Return those of these ranks that are shown. */
  private of(ranks: readonly number[]): number[] {
    return ranks.filter(rank => this.ranks?.has(rank) ?? true);
  }

  private lineChoice(shown: readonly NameInfo[]): LineChoice {
    const most = Math.max(0, ...shown.map(({ ranks }) => this.of(ranks).length));
    const { isMean, isComparing, smoothing } = this.choice;
    return { ranks: this.ranks, isMean: isMean ?? (isComparing || most > CURVES), smoothing };
  }

  /** Update the legend: the color of this run depends on how many of its ranks are drawn. */
  private refreshRuns(shown: readonly NameInfo[], { isMean }: LineChoice): void {
    const ranks = new Set(shown.flatMap(info => this.of(info.ranks)));
    const [only] = ranks;
    this.runs.refresh(shown.length > 0, ranks.size === 1 ? only : isMean ? null : undefined);
  }

  private sought(): Sought {
    const { axis, window } = this.choice;
    const seen = [...this.plots.values()].filter(({ isSeen }) => isSeen);
    const width = Math.max(0, ...seen.map(plot => plot.width)) || this.grid.clientWidth;
    const room = width / (this.model.ranks.length > CURVES ? BUCKET.many : BUCKET.few);
    const points = Math.min(Math.max(LEAST_POINTS, Math.ceil(room / 200) * 200), MOST_POINTS);
    return { axis, points, range: window.isFitted ? null : window.range, names: seen.map(({ name }) => name) };
  }

  /** Set the extent to all points of the plots; along time, extend the timeline to them as well. */
  private setExtent(shown: readonly NameInfo[]): void {
    if (shown.length === 0) {
      return;
    }
    const { axis, window } = this.choice;
    const infos = [...shown, ...this.comparison.infos(new Set(shown.map(({ name }) => name)))];
    const ends = infos.flatMap(({ steps, t }) => (axis === 'time' ? t : steps));
    const extent = { from: Math.min(...ends), to: Math.max(...ends) };
    if (axis === 'time' && !this.choice.isComparing) {
      const { run, spans } = this.model;
      const wall = run.end && run.state !== 'running' ? run.end - run.start : null;
      const { from, to } = spans.extent ?? extent;
      this.look.setExtent({ from: Math.min(from, extent.from), to: Math.max(to, extent.to) }, wall);
    }
    window.setExtent(extent);
  }

  private setPlots(shown: readonly NameInfo[]): void {
    const wanted = new Map<string, PlotView>();
    for (const { name } of shown) {
      wanted.set(name, this.plots.get(name) ?? this.makePlot(name));
    }
    for (const [name, plot] of this.plots) {
      if (!wanted.has(name)) {
        this.sight.unobserve(plot.node);
      }
    }
    this.plots = wanted;
    setChildren(this.grid, [...wanted.values()].map(({ node }) => node));
  }

  private makePlot(name: string): PlotView {
    const plot = new PlotView(name, this.choice, this.movable, {
      moved: () => this.moved(plot),
      point: (which, x, left, top) => this.point(which, x, left, top),
      fit: () => this.showAll()
    });
    plot.node.setAttribute('aria-describedby', this.help.id);
    this.sight.observe(plot.node);
    return plot;
  }

  private onSight(entries: readonly IntersectionObserverEntry[]): void {
    for (const { target, isIntersecting } of entries) {
      const plot = this.plots.get((target as HTMLElement).dataset.name ?? '');
      if (plot) {
        plot.isSeen = isIntersecting;
      }
    }
    this.frame.request();
  }

  /** Zoom to the selected range once the selection is finished. */
  private moved(plot: PlotView): void {
    const { window } = this.choice;
    if (window.part) {
      this.cursor = null;
      this.tip.hide();
    }
    if (window.part && !plot.isDragging) {
      window.zoomTo(window.part);
      window.part = null;
    }
    this.frame.request();
  }

  private showAll(): void {
    this.choice.window.part = null;
    this.choice.window.fit();
    this.frame.request();
  }

  /** Show a line in all plots, and the values of this plot there. */
  private point(plot: PlotView, x: number | null, left: number, top: number): void {
    this.cursor = x;
    this.frame.request();
    if (x === null) {
      this.tip.hide();
      return;
    }
    this.tip.show(plot, this.choice, x, left, top, readTheme(this.node).ranks);
  }

  private async download(): Promise<void> {
    const { axis } = this.choice;
    const ids = [this.model.id, ...this.comparison.others.filter(({ refusal }) => !refusal).map(({ id }) => id)];
    const text = await metricsCsv(this.server, ids, axis, [...this.plots.keys()]);
    const href = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
    h('a', '', { href, download: `${this.model.id}.metrics.csv` }).click();
    // Not before the browser has begun to read the file.
    setTimeout(() => URL.revokeObjectURL(href), KEPT_MS);
  }
}

function coloursOf({ ranks, ink, faint, line, accent, font, palette }: Theme): Colours {
  return { ranks, ink, faint, line, accent, font, background: css(palette.background) };
}
