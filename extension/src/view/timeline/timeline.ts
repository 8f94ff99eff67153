/** The timeline of a run: a lane for each rank, on one clock. */
import { Widget } from '@lumino/widgets';

import { markOf, Search, spotOf, type Spot } from '../../timeline/find';
import type { Lane } from '../../timeline/lanes';
import { whenOf, type Look } from '../../timeline/look';
import { firstSteps } from '../../timeline/phases';
import { Pixels } from '../../timeline/pixels';
import { TimeScale } from '../../timeline/range';
import { meterName } from '../../timeline/samples';
import type { SpanSource } from '../../timeline/spans';
import { summary } from '../../timeline/summary';
import { trans } from '../../translation';
import type { RunModel } from '../../run/model';
import { inSlices } from '../../run/slices';
import { exactMoment } from '../../words';
import { Frame, h } from '../dom';
import { Details } from './details';
import { Gutter } from './gutter';
import { hit } from './hit';
import { Input, KEYS } from './input';
import { Levels } from './layout';
import { reading, sampleAt } from './meter';
import { Minimap } from './minimap';
import { Notes } from './notes';
import { collectiveOf, linesOf, Painter } from './painter';
import { Ruler } from './ruler';
import { Steer } from './steer';
import { readTheme, type Theme } from './theme';
import { Tip } from './tip';
import { Tools } from './tools';
import { Turns } from './turns';

/** Maximum height in pixels under a cell; a higher timeline scrolls once it has the focus. */
const HIGHEST = 900;
/** Below this width in pixels, names take less space. */
const NARROW = 520;
/** Up to this many ranks are open initially. */
const OPEN_RANKS = 2;
/** While a record is being read, a pause follows each paint: this many times its duration. */
const READING_SHARE = 8;
const HELP = (): string =>
  [
    trans.__('W and S zoom, A and D move, F fits, arrows go from span to span'),
    trans.__('full stop and comma go to the next and previous of the same name'),
    trans.__('slash searches, L goes to the log, Escape clears the selection.')
  ].join(', ');

export interface TimelineActions {
  /** Show the line of the log nearest to a moment. */
  toLog(t: number, rank: number | null): void;
  /** Where this timeline can be downloaded from. */
  traceUrl: string;
}

export class Timeline extends Widget {
  private levels!: Levels;
  /** The source of the spans that are painted. */
  private source!: SpanSource;
  private pixels!: Pixels;
  private painter!: Painter;
  private theme: Theme;
  private generation = -1;
  /** The key of the layout that was taken over last. */
  private laidOut = '';
  /** A span to scroll to once it is laid out. */
  private sought: Spot | null = null;
  private search: Search | null = null;
  private hovered: Spot | null = null;
  private ranks: ReadonlySet<number> | null = null;
  private notBefore = 0;
  private turns = new Turns();
  private timer = 0;
  private frame = new Frame(() => this.paint());
  private observer = new ResizeObserver(() => this.frame.request());
  private themed = new MutationObserver(() => this.frame.request());

  private gutter = new Gutter(lane => this.toggle(lane));
  private canvas = h('canvas', 'rr-tl-canvas', { 'aria-hidden': 'true' });
  private space = h('div', 'rr-tl-space', {}, this.gutter.node, this.canvas);
  private body = h(
    'div', 'rr-tl-body',
    { tabindex: '0', role: 'application', 'aria-roledescription': trans.__('timeline'), 'data-rr-keys': KEYS, onscroll: () => this.frame.request() },
    this.space
  );
  private ruler = new Ruler();
  private tip = new Tip();
  private help = h('span', 'rr-hidden', {}, HELP());
  private notes = new Notes();
  private minimap: Minimap;
  private tools: Tools;
  private details: Details;
  private input: Input;
  private steer: Steer;

  constructor(
    private model: RunModel,
    private look: Look,
    actions: TimelineActions,
    isInline: boolean
  ) {
    super();
    this.addClass('rr-timeline');
    this.toggleClass('rr-inline', isInline);
    model.collectives.changed.connect(this.refresh, this);
    this.minimap = new Minimap(look, () => this.frame.request());
    this.tools = new Tools({
      zoom: factor => this.moved(() => look.zoom((look.range.from + look.range.to) / 2, factor)),
      fit: () => this.moved(() => this.fitIn()),
      search: text => this.setSearch(text),
      next: step => this.steer.nextMatch(step),
      openAll: () => this.openAll(),
      meters: isShown => this.moved(() => (look.meters = isShown)),
      leave: () => this.body.focus(),
      traceUrl: actions.traceUrl
    });
    this.tools.setMeters(look.meters);
    this.tools.setText(look.text);
    this.details = new Details(() => model.spans, {
      zoomTo: what => this.moved(() => look.zoomTo(what)),
      toLog: (t, rank) => actions.toLog(t, rank),
      clear: () => this.clear(),
      leave: () => this.body.focus(),
      choose: (rank, t) => this.steer.chooseAt(rank, 'collective', t)
    });
    this.help.id = `rr-tl-help-${model.id}-${isInline ? 'cell' : 'panel'}`;
    this.body.setAttribute('aria-describedby', this.help.id);
    const frame = h('div', 'rr-tl-frame', {}, this.ruler.node, this.body);
    this.node.append(this.tools.node, this.minimap.node, frame, this.notes.empty, this.details.node, this.notes.node, this.help);
    this.steer = new Steer(model, look, {
      ranks: () => this.shownRanks(),
      search: () => (this.levels.isCoarse ? null : this.search),
      choose: spot => this.choose(spot, true),
      clear: () => this.clear(),
      fit: () => this.moved(() => this.fitIn()),
      toLog: actions.toLog,
      find: () => this.tools.focusSearch()
    });
    this.input = new Input(this.canvas, this.body, look, {
      moved: () => this.frame.request(),
      hover: (x, y) => this.hover(x, y),
      leave: () => this.hover(-1, -1),
      click: (x, y) => this.choose(this.hit(x, y), false),
      zoomHere: (x, y) => this.zoomHere(x, y),
      key: (key, isShift) => this.steer.key(key, isShift)
    });
    this.theme = readTheme(this.node);
    this.observer.observe(this.body);
    this.observer.observe(this.node);
    this.themed.observe(document.body, { attributes: true, attributeFilter: ['data-jp-theme-name', 'data-jp-theme-light'] });
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.model.collectives.changed.disconnect(this.refresh, this);
      this.frame.cancel();
      clearTimeout(this.timer);
      this.tip.dispose();
      this.observer.disconnect();
      this.themed.disconnect();
      super.dispose();
    }
  }

  /** Paint in the next frame, as something has changed; while a record is being read, after the pause. */
  refresh(): void {
    const rest = this.isReading && this.laidOut ? this.notBefore - performance.now() : 0;
    if (rest <= 0) {
      this.frame.request();
    } else {
      this.timer ||= window.setTimeout(() => {
        this.timer = 0;
        this.frame.request();
      }, rest);
    }
  }

  setRanks(ranks: ReadonlySet<number> | null): void {
    this.ranks = ranks;
    if (this.search) {
      this.setSearch(this.look.text);
    }
    this.frame.request();
  }

  /** Highlight a moment, and bring it into view. */
  pointAt(t: number): void {
    this.moved(() => {
      this.look.moment = t;
      this.look.show({ from: t, to: t });
    });
    this.body.focus();
  }

  focus(): void {
    this.body.focus();
  }

  private get isReading(): boolean {
    return !this.model.isComplete && this.model.read < this.model.size;
  }

  private moved(change: () => void): void {
    change();
    this.frame.request();
  }

  /** The layout that is shown. */
  private get laid(): Levels['laid'] {
    return this.levels.laid;
  }

  /** Request the matched collectives once all spans are read, and take them over once they are known. */
  private match(): void {
    const { collectives } = this.model;
    if (!this.isReading && this.levels.hasCollectives) {
      collectives.refresh();
    }
    this.levels.exact.match();
  }

  /** Start over if the model was reset, or if the theme changed. */
  private begin(): void {
    const theme = readTheme(this.node);
    const isNew = this.generation !== this.model.generation;
    if (!isNew && theme.key === this.theme.key) {
      return;
    }
    this.theme = theme;
    if (isNew) {
      this.levels = new Levels(this.model);
    }
    this.generation = this.model.generation;
    this.dress();
  }

  /** Prepare painting of the level that is shown, in the theme's colors. */
  private dress(): void {
    const { model, theme } = this;
    this.source = this.laid.source;
    this.pixels = new Pixels(this.source, theme.palette);
    this.painter = new Painter(this.canvas, this.source, model.samples, this.pixels, theme);
    this.laidOut = '';
    this.setSearch(this.look.text);
  }

  private paint(): void {
    if (this.isDisposed || this.node.offsetParent === null) {
      return;
    }
    const begun = performance.now();
    this.begin();
    this.levels.takeOverview();
    const { model, look } = this;
    const isEmpty = this.shownRanks().length === 0;
    this.notes.refresh(model, look, { isEmpty, isReading: this.isReading, isCoarse: this.levels.isCoarse });
    this.toggleClass('rr-tl-without', isEmpty);
    if (isEmpty) {
      return;
    }
    this.toggleClass('rr-tl-narrow', this.node.clientWidth < NARROW);
    this.match();
    if (!this.turns.take(() => this.lay(), this.laidOut !== '')) {
      this.frame.request();
      return;
    }
    this.lookFirst();
    if (!this.turns.isLaying) {
      this.seek();
    }
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(0, this.canvas.clientWidth);
    const height = Math.max(1, Math.min(this.laid.height, this.body.clientHeight));
    this.canvas.style.height = `${height}px`;
    const scale = new TimeScale(look.range, Math.max(1, Math.round(width * ratio)));
    const { collectives } = this.laid.rows;
    const { part, moment } = look;
    // A span has another index in the overview.
    const [chosen, hovered] = this.levels.isCoarse ? [null, null] : [look.chosen, this.hovered];
    this.pixels.begin();
    this.painter.paint({
      lanes: this.laid.lanes, scale, top: this.body.scrollTop, height, ratio, collectives, chosen, hovered, part, moment
    });
    this.ruler.paint(scale, this.theme, ratio);
    this.minimap.paint(this.laid.lanes, this.pixels, this.theme, width, ratio, this.laidOut);
    this.details.refresh(chosen, collectiveOf(chosen, collectives, this.model.spans), this.input.isDragging ? null : part, this.shownRanks());
    if (this.turns.isLaying || this.pixels.isBehind) {
      this.frame.request();
    }
    if (!this.turns.isLaying) {
      this.tell();
    }
    this.turns.end();
    if (this.isReading) {
      this.notBefore = performance.now() + READING_SHARE * (performance.now() - begun);
    }
  }

  /** Lay out the lanes, a time slice per frame; return whether that is done. */
  private lay(): boolean {
    const { look } = this;
    if (look.open === null && this.shownRanks().length <= OPEN_RANKS) {
      look.open = new Set(this.shownRanks().map(String));
    }
    const isResting = this.isReading && performance.now() < this.notBefore;
    const isDone = this.levels.advance(this.shownRanks(), look, this.isReading, isResting);
    if (this.source !== this.laid.source) {
      this.dress();
    }
    const { key } = this.laid;
    if (key !== this.laidOut) {
      this.laidOut = key;
      this.takeOver();
    }
    return isDone;
  }

  /** Initially, show some steps of a run that has ended, once they are known; follow a live run. */
  private lookFirst(): void {
    const { model, look } = this;
    if (look.isChosen || !this.laidOut) {
      return;
    }
    if (model.isLive) {
      look.isChosen = model.read > 0 && !this.isReading;
      return;
    }
    model.profile.refresh();
    const steps = firstSteps(model.profile.value);
    if (steps && model.profile.isUpToDate) {
      look.begin(steps);
      this.frame.request(); // for the note that says so, as notes were refreshed before
    }
  }

  /** Take over a new layout. */
  private takeOver(): void {
    const { model, look } = this;
    const { samples, run } = model;
    const { lanes, height, source: spans } = this.laid;
    this.pixels.forgetNames();
    const wall = run.end && run.state !== 'running' ? run.end - run.start : null;
    look.setExtent(spans.extent ?? { from: 0, to: 1 }, wall);
    look.chosen = look.mark && spotOf(model.spans, look.mark);
    this.space.style.height = `${height}px`;
    this.body.style.height = this.hasClass('rr-inline') ? `${Math.min(height, HIGHEST)}px` : '';
    this.gutter.refresh(lanes, lane => this.titleOf(lane));
    const cats = [...new Set(spans.ranks.flatMap(rank => spans.cats(rank)))];
    const isAllOpen = this.shownRanks().every(rank => look.open?.has(String(rank)));
    const hasMeters = spans.ranks.some(rank => samples.of(rank).length > 0);
    this.tools.refresh(cats.slice(0, 12), this.theme.palette, hasMeters, isAllOpen, this.theme.key);
    if (this.search) {
      this.setSearch(look.text);
    }
  }

  private shownRanks(): number[] {
    return this.laid.source.ranks.filter(rank => this.ranks?.has(rank) ?? true);
  }

  private titleOf({ kind, rank, meter }: Lane): string {
    const { samples, run } = this.model;
    if (kind === 'meter' && meter) {
      const curve = samples.of(rank).find(([name]) => name === meter)?.[1];
      return curve ? trans.__('%1 of rank %2: up to %3', meterName(meter), rank, reading(meter, curve.most)) : '';
    }
    const clock = run.ranks.find(info => info.rank === rank)?.clock;
    return kind === 'rank' && clock ? trans.__('accuracy of its clock: ± %1 µs', clock.error) : '';
  }

  /** Update the text for screen readers, and the state that tests read. */
  private tell(): void {
    const { body, look, model } = this;
    const text = summary(this.source, model.profile.value, this.shownRanks());
    if (body.getAttribute('aria-label') !== text) {
      body.setAttribute('aria-label', text);
    }
    body.dataset.from = String(look.range.from);
    body.dataset.to = String(look.range.to);
    body.dataset.moment = String(look.moment ?? '');
    body.dataset.spans = String(this.source.count);
    body.dataset.exact = String(!this.levels.isCoarse && !this.isReading);
    body.dataset.ranks = String(this.laid.lanes.filter(({ kind }) => kind === 'rank').length);
    body.dataset.matched = String(this.source.isCut || this.laid.rows.collectives !== null || !this.levels.hasCollectives);
  }

  /** Return the span at a place in the timeline; null in an overview, whose spans cannot be chosen. */
  private hit(x: number, y: number): Spot | null {
    if (this.levels.isCoarse) {
      return null;
    }
    const scale = new TimeScale(this.look.range, Math.max(1, this.canvas.clientWidth));
    return hit(this.laid.lanes, scale, x, y + this.body.scrollTop);
  }

  private hover(x: number, y: number): void {
    const spot = x < 0 ? null : this.hit(x, y);
    const isSame = spot?.rank === this.hovered?.rank && spot?.cat === this.hovered?.cat && spot?.i === this.hovered?.i;
    this.hovered = spot;
    const box = this.canvas.getBoundingClientRect();
    const [left, top] = [box.left + x, box.top + y];
    if (spot) {
      const { collectives } = this.laid.rows;
      this.tip.span(this.model.spans, spot, collectiveOf(spot, collectives, this.model.spans), left, top);
    } else {
      this.hoverMeter(x, y, left, top);
    }
    if (!isSame) {
      this.frame.request();
    }
  }

  private hoverMeter(x: number, y: number, left: number, top: number): void {
    const at = y + this.body.scrollTop;
    const lane = this.laid.lanes.find(each => at >= each.y && at < each.y + each.height);
    const curve = lane?.meter && this.model.samples.of(lane.rank).find(([name]) => name === lane.meter)?.[1];
    const scale = new TimeScale(this.look.range, Math.max(1, this.canvas.clientWidth));
    const t = scale.t(x);
    const value = x >= 0 && curve ? sampleAt(curve, t) : null;
    if (lane?.meter && value !== null) {
      this.tip.show([trans.__('%1 of rank %2: %3', lane.label, lane.rank, reading(lane.meter, value)), exactMoment(t, scale.perPixel)], left, top);
    } else {
      this.tip.hide();
    }
  }

  /** Choose a span; with `isShown`, bring it into view. */
  private choose(spot: Spot | null, isShown: boolean): void {
    const { look, model } = this;
    look.chosen = spot;
    look.mark = spot && markOf(model.spans, spot);
    look.part = null;
    look.moment = null;
    if (spot && isShown) {
      if (spot.cat === 'phase' && !look.open?.has(String(spot.rank))) {
        look.open = new Set([...(look.open ?? []), String(spot.rank)]);
      }
      look.show(whenOf(this.model.spans.columns(spot.rank, spot.cat), spot.i));
      this.sought = spot;
    }
    this.frame.request();
  }

  /** Scroll to the sought span, if there is one. */
  private seek(): void {
    const { sought, body } = this;
    this.sought = null;
    const when = sought && whenOf(this.model.spans.columns(sought.rank, sought.cat), sought.i);
    const [line] = sought && when ? linesOf(this.laid.lanes, sought.rank, sought.cat, when.from, when.to) : [];
    if (line) {
      const { scrollTop, clientHeight } = body;
      body.scrollTop = Math.max(Math.min(scrollTop, line.y - 4), line.y + line.height + 4 - clientHeight);
    }
  }

  private clear(): void {
    this.choose(null, false);
    this.body.focus();
  }

  private zoomHere(x: number, y: number): void {
    const spot = this.hit(x, y);
    if (spot) {
      this.moved(() => this.look.zoomTo(whenOf(this.model.spans.columns(spot.rank, spot.cat), spot.i)));
    }
  }

  private fitIn(): void {
    const { chosen, part } = this.look;
    this.look.fit(chosen ? whenOf(this.model.spans.columns(chosen.rank, chosen.cat), chosen.i) : part);
  }

  private toggle(lane: Lane): void {
    const open = new Set(this.look.open ?? []);
    if (!open.delete(lane.key)) {
      open.add(lane.key);
    }
    this.moved(() => (this.look.open = open));
  }

  private openAll(): void {
    const ranks = this.shownRanks().map(String);
    const isAllOpen = ranks.every(rank => this.look.open?.has(rank));
    this.moved(() => (this.look.open = new Set(isAllOpen ? [] : ranks)));
  }

  private setSearch(text: string): void {
    this.look.text = text;
    this.search = text.trim() ? new Search(this.source, text, this.ranks) : null;
    this.pixels?.setSearch(this.search);
    void this.count(this.search);
    this.frame.request();
  }

  private async count(search: Search | null): Promise<void> {
    const matches = search && !this.levels.isCoarse ? await inSlices(search.counting()) : null;
    if (search === this.search) {
      this.tools.say(matches);
    }
  }
}
