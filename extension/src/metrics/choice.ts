/** The view options for a run's metrics: what is drawn, and over which steps or which time. */
import type { Look } from '../timeline/look';
import { inside, panned, zoomed, type Range } from '../timeline/range';

export type XAxis = 'step' | 'time';

/** Padding at each end when all is shown, as a share of the range. */
const AIR = 0.02;
/** The shortest range of steps that can be shown. */
const FEWEST_STEPS = 1e-3;
/** The shortest range of time that can be shown, in microseconds. */
const SHORTEST_TIME = 10;

/** The visible range along x, which can be moved. */
export abstract class Window {
  /** The range that is being selected. */
  part: Range | null = null;
  /** The range of all points, with padding. */
  protected all: Range = { from: 0, to: 1 };

  abstract get range(): Range;
  abstract get isFitted(): boolean;
  abstract fit(): void;
  protected abstract get bounds(): Range;
  protected abstract set(range: Range): void;
  protected abstract shortest: number;

  setExtent({ from, to }: Range): void {
    const air = (to - from) * AIR || 0.5;
    this.all = { from: from - air, to: to + air };
  }

  zoom(at: number, factor: number): void {
    this.set(zoomed(this.range, at, factor, this.bounds, this.shortest));
  }

  pan(by: number): void {
    this.set(panned(this.range, by, this.bounds));
  }

  select(part: Range | null): void {
    this.part = part;
  }

  zoomTo(range: Range): void {
    if (range.to - range.from > this.shortest) {
      this.set(inside(range, this.bounds));
    }
  }
}

/** A range that is independent of the timeline: of steps, or of the times of compared runs. */
class OwnWindow extends Window {
  chosen: Range | null = null;

  constructor(protected shortest: number) {
    super();
  }

  get range(): Range {
    return this.chosen ? inside(this.chosen, this.all) : this.all;
  }

  get isFitted(): boolean {
    return this.chosen === null;
  }

  fit(): void {
    this.chosen = null;
  }

  protected get bounds(): Range {
    return this.all;
  }

  protected set(range: Range): void {
    const isAll = range.to - range.from >= (this.all.to - this.all.from) * (1 - 1e-6);
    this.chosen = isAll ? null : range;
  }
}

/** The timeline's range; if the timeline shows the whole run, the range of all points. */
class TimeWindow extends Window {
  protected shortest = SHORTEST_TIME;

  constructor(private look: Look) {
    super();
  }

  get range(): Range {
    return this.look.isFitted ? this.all : this.look.range;
  }

  get isFitted(): boolean {
    return this.look.isFitted;
  }

  fit(): void {
    this.look.fit(null);
  }

  protected get bounds(): Range {
    const { from, to } = this.look.bounds;
    return { from: Math.min(from, this.all.from), to: Math.max(to, this.all.to) };
  }

  protected set(range: Range): void {
    this.look.goTo(range);
  }
}

/** The options that survive a page reload. */
export interface SavedChoice {
  axis: XAxis;
  isLog: boolean;
  smoothing: number;
  isMean: boolean | null;
  text: string;
  pinned: readonly string[];
  compared: readonly string[] | null;
  /** The visible ranges of steps, and of time since each run's start; null for all. */
  steps: Range | null;
  sinceStart: Range | null;
}

export class Choice {
  axis: XAxis = 'step';
  isLog = false;
  /** The weight that one more point leaves to the points before it; 0 for no smoothing. */
  smoothing = 0;
  /** Whether mean and spread replace the curves of the ranks; null until the reader chooses. */
  isMean: boolean | null = null;
  /** The filter for names. */
  text = '';
  /** Names that are shown in addition to the first ones. */
  readonly pinned: Set<string> = new Set();
  /** Ids of the runs to compare with; null for those that the record names. */
  compared: readonly string[] | null = null;
  /** Whether there are compared runs: time then counts from each run's start, apart from the timeline's range. */
  isComparing = false;
  private steps = new OwnWindow(FEWEST_STEPS);
  private sinceStart = new OwnWindow(SHORTEST_TIME);
  private times: TimeWindow;

  constructor(look: Look, saved?: SavedChoice) {
    this.times = new TimeWindow(look);
    if (saved) {
      this.axis = saved.axis;
      this.isLog = saved.isLog;
      this.smoothing = saved.smoothing;
      this.isMean = saved.isMean;
      this.text = saved.text;
      this.pinned = new Set(saved.pinned);
      this.compared = saved.compared;
      this.steps.chosen = saved.steps;
      this.sinceStart.chosen = saved.sinceStart;
    }
  }

  toJSON(): SavedChoice {
    const { axis, isLog, smoothing, isMean, text, pinned, compared, steps, sinceStart } = this;
    return {
      axis, isLog, smoothing, isMean, text, pinned: [...pinned], compared,
      steps: steps.chosen, sinceStart: sinceStart.chosen
    };
  }

  get window(): Window {
    if (this.axis === 'step') {
      return this.steps;
    }
    return this.isComparing ? this.sinceStart : this.times;
  }
}
