/** How one looks at the metrics of a run: what is drawn, and over which steps or which time. */
import type { Look } from '../timeline/look';
import { inside, panned, zoomed, type Range } from '../timeline/range';

export type XAxis = 'step' | 'time';

/** Room at each end when all is shown. */
const AIR = 0.02;
/** A plot of fewer steps than this says nothing. */
const FEWEST_STEPS = 1e-3;
/** Microseconds. */
const SHORTEST_TIME = 10;

/** What the plots show along x, and can be moved. */
export abstract class Window {
  /** A part that is selected just now. */
  part: Range | null = null;
  /** All points. */
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

/** A range of its own: of steps, or of times that are not the timeline's. */
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

/** The timeline's range, unless that shows all: then the plots show all points. */
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

/** What of it outlives a page. */
export interface SavedChoice {
  axis: XAxis;
  isLog: boolean;
  smoothing: number;
  isMean: boolean | null;
  text: string;
  pinned: readonly string[];
  compared: readonly string[] | null;
  /** The steps, and the times since each run's start, that are shown; null for all. */
  steps: Range | null;
  sinceStart: Range | null;
}

export class Choice {
  axis: XAxis = 'step';
  isLog = false;
  /** What one more point leaves of those before it; 0 for no smoothing. */
  smoothing = 0;
  /** Mean and spread instead of a curve for each rank; null until the reader says so. */
  isMean: boolean | null = null;
  /** What names are filtered by. */
  text = '';
  /** Names that are shown besides the first. */
  readonly pinned: Set<string> = new Set();
  /** The runs that it is compared with; null for those that its record names. */
  compared: readonly string[] | null = null;
  /** Whether there are such: each has its own start then, and the timeline shows only one of them. */
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
