/** The metrics of a run: a plot for each, all over the same steps or the same time. */
import { Widget } from '@lumino/widgets';

import type { NameInfo } from '../../metrics/answer';
import type { Choice } from '../../metrics/choice';
import { metricsCsv } from '../../metrics/csv';
import { CURVES, type LineChoice } from '../../metrics/lines';
import type { Colours } from '../../metrics/paint';
import { placeWords, tipRows } from '../../metrics/phrases';
import { pick } from '../../metrics/pick';
import { MetricsSource, type MetricsServer, type Sought } from '../../metrics/source';
import type { RunModel } from '../../run/model';
import { css } from '../../timeline/colours';
import type { Look } from '../../timeline/look';
import { trans } from '../../translation';
import { Frame, h, setChildren, setText } from '../dom';
import type { Movable } from '../timeline/input';
import { readTheme, type Theme } from '../timeline/theme';
import { Tip } from '../timeline/tip';
import { Controls } from './controls';
import { NamePicker } from './namepicker';
import { PlotView } from './plot';
import { Told } from './told';

/** Pixels a bucket has at least, of few curves and of many. */
const BUCKET = { few: 1, many: 2 };
const LEAST_POINTS = 200;
/** How long a file is there for the browser to take. */
const KEPT_MS = 60_000;
const MOST_POINTS = 1_200;
const HELP = (): string =>
  trans.__('W and S zoom, A and D move, arrows go from point to point, 0 and Escape show all.');

let tabs = 0;

export class MetricsTab extends Widget {
  private source: MetricsSource;
  private ranks: ReadonlySet<number> | null = null;
  private plots = new Map<string, PlotView>();
  private cursor: number | null = null;
  private frame = new Frame(() => this.paint());
  private observer = new ResizeObserver(() => this.frame.request());
  private themed = new MutationObserver(() => this.frame.request());
  private sight = new IntersectionObserver(entries => this.onSight(entries), { rootMargin: '150px' });
  private movable: Movable;

  private grid = h('div', 'rr-mt-grid', { role: 'group', 'aria-label': trans.__('metrics') });
  private said = h('span', 'rr-hidden', { 'aria-live': 'polite' });
  private help = h('span', 'rr-hidden', {}, HELP());
  private tip = new Tip();
  private controls: Controls;
  private picker: NamePicker;
  private told: Told;

  constructor(
    private model: RunModel,
    private server: MetricsServer,
    private choice: Choice,
    private look: Look
  ) {
    super();
    this.addClass('rr-metrics');
    this.source = new MetricsSource(model, server);
    this.source.changed.connect(this.refresh, this);
    const changed = (): void => this.frame.request();
    this.controls = new Controls(choice, { changed, fit: () => this.showAll(), download: () => this.download() });
    this.picker = new NamePicker(choice, changed);
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
    this.node.append(this.controls.node, this.picker.node, notes, empty, this.grid, lasts, this.said, this.help);
    this.observer.observe(this.grid);
    this.themed.observe(document.body, { attributes: true, attributeFilter: ['data-jp-theme-name', 'data-jp-theme-light'] });
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.source.dispose();
      this.frame.cancel();
      this.tip.dispose();
      this.observer.disconnect();
      this.themed.disconnect();
      this.sight.disconnect();
      super.dispose();
    }
  }

  /** Show how the run stands now; nothing is asked or painted while it is hidden. */
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
    const { choice, source } = this;
    const names = source.names ?? [];
    const picked = pick(names, this.ranks, this.picker.test, choice.pinned);
    this.setExtent(picked.shown);
    this.setPlots(picked.shown);
    this.picker.refresh(names.length, picked);
    const sought = this.sought();
    source.refresh(sought);
    this.told.refresh(picked.shown.length, this.picker.test !== null);
    const isMany = picked.shown.some(({ ranks }) => this.of(ranks).length > 1);
    const chosen = this.lineChoice(picked.shown);
    this.controls.refresh({ isThere: picked.shown.length > 0, isMany, isMean: chosen.isMean });
    const theme = readTheme(this.node);
    picked.shown.forEach(info => this.paintPlot(info, chosen, coloursOf(theme), theme.key));
    this.told.refreshLasts([...this.plots.values()]);
    const { range } = choice.window;
    Object.assign(this.node.dataset, {
      from: String(range.from), to: String(range.to), answers: String(source.version),
      ready: String(source.isUpToDate(sought) && [...this.plots.values()].some(({ isSeen }) => isSeen))
    });
  }

  private paintPlot(info: NameInfo, chosen: LineChoice, colours: Colours, key: string): void {
    const { axis, window } = this.choice;
    const plot = this.plots.get(info.name)!;
    const whole = this.source.metric(info.name, axis, null);
    const metric = window.isFitted ? whole : this.source.metric(info.name, axis, window.range);
    plot.dress(info, metric, whole, chosen);
    if (plot.isSeen) {
      plot.paint(colours, key, this.cursor);
    }
  }

  /** Those that are shown of these ranks. */
  private of(ranks: readonly number[]): number[] {
    return ranks.filter(rank => this.ranks?.has(rank) ?? true);
  }

  private lineChoice(shown: readonly NameInfo[]): LineChoice {
    const most = Math.max(0, ...shown.map(({ ranks }) => this.of(ranks).length));
    return { ranks: this.ranks, isMean: this.choice.isMean ?? most > CURVES, smoothing: this.choice.smoothing };
  }

  private sought(): Sought {
    const { axis, window } = this.choice;
    const seen = [...this.plots.values()].filter(({ isSeen }) => isSeen);
    const width = Math.max(0, ...seen.map(plot => plot.width)) || this.grid.clientWidth;
    const room = width / (this.model.ranks.length > CURVES ? BUCKET.many : BUCKET.few);
    const points = Math.min(Math.max(LEAST_POINTS, Math.ceil(room / 200) * 200), MOST_POINTS);
    return { axis, points, range: window.isFitted ? null : window.range, names: seen.map(({ name }) => name) };
  }

  /** All points of the plots, and on the clock what the timeline shows as well. */
  private setExtent(shown: readonly NameInfo[]): void {
    if (shown.length === 0) {
      return;
    }
    const { axis, window } = this.choice;
    const ends = shown.flatMap(({ steps, t }) => (axis === 'time' ? t : steps));
    const extent = { from: Math.min(...ends), to: Math.max(...ends) };
    if (axis === 'time') {
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

  /** What was selected is zoomed to. */
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

  /** A line in all plots, and what this one says there. */
  private point(plot: PlotView, x: number | null, left: number, top: number): void {
    this.cursor = x;
    this.frame.request();
    if (x === null) {
      this.tip.hide();
      setText(this.said, '');
      return;
    }
    const place = placeWords(this.choice.axis, x, plot.ranks.every(({ isEachPoint }) => isEachPoint));
    const rows = tipRows(plot.lines, plot.ranks, x);
    const { ranks } = readTheme(this.node);
    const lines = rows.map(({ rank, text }) => {
      const swatch = h('span', 'rr-mt-swatch', { 'aria-hidden': 'true' });
      swatch.style.background = rank === null ? 'transparent' : ranks[rank % ranks.length];
      return h('span', 'rr-mt-tip', {}, swatch, text);
    });
    this.tip.show([`${plot.name} · ${place}`, ...lines], left, top);
    if (plot.node === document.activeElement) {
      setText(this.said, [place, ...rows.map(({ text }) => text)].join(', '));
    }
  }

  private async download(): Promise<void> {
    const { axis } = this.choice;
    const text = await metricsCsv(this.server, this.model.id, axis, [...this.plots.keys()]);
    const href = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
    h('a', '', { href, download: `${this.model.id}.metrics.csv` }).click();
    // Not before the browser has begun to read it.
    setTimeout(() => URL.revokeObjectURL(href), KEPT_MS);
  }
}

function coloursOf({ ranks, ink, faint, line, accent, font, palette }: Theme): Colours {
  return { ranks, ink, faint, line, accent, font, background: css(palette.background) };
}
