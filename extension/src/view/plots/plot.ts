/** The plot of one metric: its name, its last value, its curves, and a line at the pointer. */
import type { Metric, NameInfo, RankCurve } from '../../metrics/answer';
import type { Choice } from '../../metrics/choice';
import { letterOf } from '../../metrics/comparison';
import { nearest } from '../../metrics/curves';
import { linesOf, linesOfOthers, nextPlace, snap, type Line, type LineChoice } from '../../metrics/lines';
import { paintOver, paintPlot } from '../../metrics/paint';
import { lastOfOthers, lastWords, summary } from '../../metrics/phrases';
import { MARGIN, type Colours, type Plot } from '../../metrics/plotstyle';
import { TimeScale } from '../../timeline/range';
import { trans } from '../../translation';
import { h, setText } from '../dom';
import { Input, type Movable } from '../timeline/input';

const HEIGHT = 168;
/** The keys that a plot handles while it has the focus, in addition to arrows, Home and End. */
const KEYS = 'w a s d f 0 + - W A S D F Escape';

/** The data of a metric of a run: in the visible range, and over the whole run. */
export interface Shown {
  metric: Metric | null;
  whole: Metric | null;
}

export interface PlotActions {
  /** The range changed, or a part of it was selected. */
  moved(): void;
  /** The pointer or a key is at `x`, or has left (null); `left` and `top` are where a tooltip goes in the window. */
  point(plot: PlotView, x: number | null, left: number, top: number): void;
  fit(): void;
}

export class PlotView {
  lines: Line[] = [];
  /** The lines over the whole run, even while a part of it is shown. */
  wholeLines: Line[] = [];
  /** The lines of compared runs. */
  others: Line[] = [];
  wholeOthers: Line[] = [];
  /** The curves of the ranks that are shown. */
  ranks: readonly RankCurve[] = [];
  isSeen = false;

  /** The place of the keyboard's cursor, or of the pointer. */
  private cursor: number | null = null;
  private metric: Metric | null = null;
  private whole: Metric | null = null;
  private of: ReadonlyArray<Shown> = [];
  private dressed = '';
  private painted = '';
  private overPainted = '';
  /** Counts changes of the lines. */
  private version = 0;
  private last = h('span', 'rr-mt-last');
  private canvas = h('canvas', 'rr-mt-canvas', { 'aria-hidden': 'true' });
  private over = h('canvas', 'rr-mt-canvas', { 'aria-hidden': 'true' });
  private area = h('div', 'rr-mt-area');
  private none = h('div', 'rr-mt-none', { hidden: true });
  readonly node: HTMLElement;
  private input: Input;

  constructor(
    readonly name: string,
    private choice: Choice,
    movable: Movable,
    private actions: PlotActions
  ) {
    this.area.style.inset = `${MARGIN.top}px ${MARGIN.right}px ${MARGIN.bottom}px ${MARGIN.left}px`;
    this.none.style.inset = this.area.style.inset;
    this.node = h(
      'figure', 'rr-mt-plot',
      { tabindex: '0', role: 'application', 'aria-roledescription': trans.__('plot'), 'data-rr-keys': KEYS, 'data-name': name },
      h('figcaption', 'rr-mt-title', {}, h('b', '', { title: name }, name), this.last),
      h('div', 'rr-mt-frame', { style: `height: ${HEIGHT}px` }, this.canvas, this.over, this.none, this.area)
    );
    this.input = new Input(this.area, this.node, movable, {
      moved: () => actions.moved(),
      hover: (x, y) => this.hover(x, y),
      leave: () => actions.point(this, null, 0, 0),
      click: (x, y) => this.hover(x, y),
      zoomHere: () => actions.fit(),
      key: key => this.key(key)
    });
    this.node.addEventListener('blur', () => actions.point(this, null, 0, 0));
  }

  get isDragging(): boolean {
    return this.input.isDragging;
  }

  /** The width of the curves in pixels. */
  get width(): number {
    return this.area.clientWidth;
  }

  /** Set the curves, if they have changed; the last value is that of the whole run. */
  dress(info: NameInfo, { metric, whole }: Shown, chosen: LineChoice, others: readonly Shown[]): void {
    const key = JSON.stringify([chosen.isMean, chosen.smoothing, chosen.ranks && [...chosen.ranks], this.choice.axis]);
    const isSame = others.length === this.of.length && others.every((each, i) => each.metric === this.of[i].metric && each.whole === this.of[i].whole);
    if (metric === this.metric && whole === this.whole && isSame && key === this.dressed) {
      return;
    }
    this.of = others;
    this.metric = metric;
    this.whole = whole;
    this.dressed = key;
    this.version += 1;
    this.lines = metric ? linesOf(metric, chosen) : [];
    this.ranks = metric?.ranks.filter(({ rank }) => chosen.ranks?.has(rank) ?? true) ?? [];
    this.wholeLines = !whole || whole === metric ? this.lines : linesOf(whole, { ...chosen, smoothing: 0 });
    this.others = linesOfOthers(others.map(each => each.metric), chosen.smoothing);
    this.wholeOthers = linesOfOthers(others.map(each => each.whole), 0);
    const last = [lastWords(this.wholeLines), ...lastOfOthers(this.wholeOthers)].join(' · ');
    setText(this.last, last);
    this.node.setAttribute('aria-label', metric ? summary(info, last, this.choice.axis) : this.name);
    this.node.dataset.lines = String(this.lines.length);
    this.node.dataset.others = this.others.map(({ other = 0 }) => letterOf(other)).join('');
    this.node.dataset.points = String(Math.max(0, ...this.lines.map(({ curve }) => curve.x.length)));
  }

  /** Paint what has changed. */
  paint(colours: Colours, key: string, cursor: number | null): void {
    this.cursor = cursor;
    const { window, isLog, axis } = this.choice;
    const ratio = globalThis.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const plot: Plot = {
      lines: this.lines, others: this.others, axis, range: window.range, isLog, width, height: HEIGHT, ratio, colours,
      cursor, part: window.part
    };
    const base = [this.version, window.range.from, window.range.to, isLog, axis, width, ratio, key].join();
    if (base !== this.painted) {
      this.painted = base;
      const context = sized(this.canvas, width, ratio);
      const isThere = context === null || paintPlot(context, plot);
      this.none.hidden = isThere;
      setText(this.none, isThere ? '' : this.why());
    }
    const over = [base, cursor, window.part?.from, window.part?.to].join();
    if (over !== this.overPainted) {
      this.overPainted = over;
      const context = sized(this.over, width, ratio);
      if (context) {
        paintOver(context, plot);
      }
    }
  }

  /** Say why there is nothing to see. */
  private why(): string {
    if (!this.metric) {
      return trans.__('Reading …');
    }
    const { isLog, window } = this.choice;
    const { from, to } = window.range;
    const values = [...this.lines, ...this.others].flatMap(({ curve: { x, mean } }) => [...mean].filter((_, i) => x[i] >= from && x[i] <= to));
    if (values.length === 0) {
      return trans.__('no points in this range');
    }
    return isLog && values.some(Number.isFinite) ? trans.__('no value above 0 in this range') : trans.__('no finite value in this range');
  }

  private hover(x: number, y: number): void {
    const box = this.area.getBoundingClientRect();
    const at = new TimeScale(this.choice.window.range, Math.max(1, box.width)).t(x);
    this.actions.point(this, snap([...this.lines, ...this.others], at, nearest), box.left + x, box.top + y);
  }

  /** Point at a place that was chosen with the keyboard. */
  private pointAt(x: number): void {
    const box = this.area.getBoundingClientRect();
    const left = new TimeScale(this.choice.window.range, Math.max(1, box.width)).x(x);
    this.actions.point(this, x, box.left + left, box.top + box.height / 3);
  }

  private key(key: string): boolean {
    if (key === 'Escape' || key === '0' || key.toLowerCase() === 'f') {
      this.actions.point(this, null, 0, 0);
      this.actions.fit();
      return true;
    }
    const { from, to } = this.choice.window.range;
    const seen = [...(this.lines[0]?.curve.x ?? [])].filter(place => place >= from && place <= to);
    const moves: { [key: string]: (() => number | undefined) | undefined } = {
      ArrowLeft: () => nextPlace(seen, this.cursor, -1),
      ArrowRight: () => nextPlace(seen, this.cursor, 1),
      Home: () => seen[0],
      End: () => seen[seen.length - 1]
    };
    const move = moves[key];
    const next = move?.();
    if (next !== undefined) {
      this.pointAt(next);
    }
    return move !== undefined;
  }
}

/** Size the canvas to its pixels on the screen; return its context. */
function sized(canvas: HTMLCanvasElement, width: number, ratio: number): CanvasRenderingContext2D | null {
  const [wide, high] = [Math.max(1, Math.round(width * ratio)), Math.round(HEIGHT * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  return canvas.getContext('2d');
}
