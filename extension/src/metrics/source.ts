/** Requests the visible curves from the server: one request at a time, and not too often for a live run. */
import { Signal, type ISignal } from '@lumino/signaling';

import type { RunModel } from '../run/model';
import type { RunState } from '../schema';
import type { Range } from '../timeline/range';
import { readAnswer, type Metric, type MetricsAnswer, type NameInfo } from './answer';
import type { XAxis } from './choice';

/** Pause between requests for a live run (ms), its minimum in durations of the last one, and after a failure (ms). */
const REST = 1_000;
const SHARE = 5;
const RETRY = 5_000;
/** A range is requested once it has not moved for this many milliseconds. */
const SETTLE = 200;
/** Margin requested on each side of a range, as a share of it, as the reader may soon move there. */
const BESIDE = 0.5;
/** Maximum curves in one reply, so that each still has some points; as the server's CURVES_AT_ONCE. */
const CURVES_AT_ONCE = 2_500;
/** A range that is this many times shorter than the known one is requested again. */
const CLOSER = 2;

export interface Question {
  axis: XAxis;
  /** Null for all. */
  range: Range | null;
  points: number;
  /** Empty for the first names of the run. */
  names: readonly string[];
}

export interface MetricsServer {
  metrics(id: string, question: Question): Promise<MetricsAnswer>;
}

/** What is visible now. */
export interface Sought {
  axis: XAxis;
  /** Null for all. */
  range: Range | null;
  names: readonly string[];
  /** Points per curve, as many as fit. */
  points: number;
}

interface Known {
  metric: Metric;
  range: Range | null;
  /** Maximum points per curve, and how many were requested. */
  points: number;
  asked: number;
  /** How many metrics were in the same reply. */
  together: number;
  /** Identifies what had been reported by then. */
  stamp: string;
}

interface Store {
  whole: Map<string, Known>;
  /** The partial range that was visible last. */
  part: Map<string, Known>;
}

const emptyStore = (): Store => ({ whole: new Map(), part: new Map() });

export class MetricsSource {
  /** All metrics of the run; null until the first reply. */
  names: readonly NameInfo[] | null = null;
  notes: readonly string[] = [];
  /** The state of the run at the last reply. */
  state: RunState | null = null;
  /** Why the last request failed, in a sentence; '' if it did not. */
  trouble = '';
  /** Counts replies. */
  version = 0;

  private stores: { [axis in XAxis]: Store } = { step: emptyStore(), time: emptyStore() };
  private isAsking = false;
  /** Identifies what had been reported by the last reply. */
  private last = '';
  private rested = 0;
  private settled = 0;
  private lastRange = '';
  private timer: ReturnType<typeof setTimeout> | undefined;
  private _changed = new Signal<this, void>(this);

  constructor(
    private model: Pick<RunModel, 'id' | 'isLive' | 'metricEvents' | 'generation'>,
    private server: MetricsServer
  ) {}

  /** Emitted when a reply arrives, and when a request is due. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  dispose(): void {
    clearTimeout(this.timer);
    Signal.clearData(this);
  }

  /** Return the best known data of a metric in a range; null if there is none. */
  metric(name: string, axis: XAxis, range: Range | null): Metric | null {
    const { whole, part } = this.stores[axis];
    const close = part.get(name);
    const known = range && close && covers(close.range, range) ? close : whole.get(name);
    return known?.metric ?? null;
  }

  /** Request what is visible, if it is not known. Call this while the view is visible. */
  refresh(sought: Sought): void {
    const now = performance.now();
    const range = JSON.stringify([sought.axis, sought.range]);
    if (range !== this.lastRange) {
      this.settled = this.lastRange && sought.range ? now + SETTLE : now;
      this.lastRange = range;
    }
    if (this.isAsking) {
      return;
    }
    const question = this.question(sought);
    if (!question) {
      return;
    }
    const { isNew, ...asked } = question;
    const wait = Math.max(this.settled - now, (isNew && !this.trouble ? 0 : this.rested) - now);
    if (wait <= 0) {
      void this.ask({ ...asked, names: this.atOnce(asked.names) });
    } else {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this._changed.emit(), wait);
    }
  }

  /** Whether everything visible is known. */
  isUpToDate(sought: Sought): boolean {
    return this.names !== null && this.question(sought) === null;
  }

  private get stamp(): string {
    const { isLive, metricEvents, generation } = this.model;
    // The record of a lost run may have been read again, once the run had come back and ended.
    return isLive ? `${metricEvents} so far` : `all ${generation}`;
  }

  /** Return the next request, or null; `isNew` is false if it only updates known data. */
  private question({ axis, range, names, points }: Sought): (Question & { isNew: boolean }) | null {
    const { whole, part } = this.stores[axis];
    if (this.names === null || (this.names.length === 0 && this.last !== this.stamp)) {
      return { axis, range: null, names: [], points, isNew: this.names === null };
    }
    const unknown = names.filter(name => !whole.has(name));
    if (unknown.length) {
      return { axis, range: null, names: unknown, points, isNew: true };
    }
    const isClose = (name: string): boolean => range !== null && !whole.get(name)!.metric.isFinest;
    const coarse = names.filter(name => isClose(name) && !fits(part.get(name), range!, points, names.length));
    if (coarse.length) {
      return { ...around(range!, points), axis, names: [...new Set([...coarse, ...names])], isNew: true };
    }
    const rough = names.filter(name => isRough(whole.get(name)!, points, names.length));
    if (rough.length) {
      return { axis, range: null, names: rough, points, isNew: true };
    }
    const isOld = (known: Known | undefined): boolean => known?.stamp !== this.stamp;
    // Those that have waited longest come first: more may be reported before all are requested.
    const close = [...part.keys()].filter(name => names.includes(name) && isClose(name) && isOld(part.get(name)));
    if (close.length) {
      return { ...around(range!, points), axis, names: [...new Set([...close, ...names])], isNew: false };
    }
    // Also those that are zoomed: their last value is shown.
    const old = [...whole.keys()].filter(name => names.includes(name) && isOld(whole.get(name)));
    return old.length ? { axis, range: null, names: old, points, isNew: false } : null;
  }

  /** Return the first of these names whose curves fit in one reply; at least one. */
  private atOnce(names: readonly string[]): readonly string[] {
    const ranks = new Map(this.names?.map(info => [info.name, info.ranks.length] as const));
    let curves = 0;
    return names.filter((name, i) => (curves += ranks.get(name) ?? 0) <= CURVES_AT_ONCE || i === 0);
  }

  private async ask(question: Question): Promise<void> {
    const begin = performance.now();
    const { stamp } = this;
    this.isAsking = true;
    try {
      this.take(question, await this.server.metrics(this.model.id, question), stamp);
      this.trouble = '';
    } catch (error) {
      this.trouble = error instanceof Error ? error.message : String(error);
    } finally {
      this.isAsking = false;
      const now = performance.now();
      this.rested = now + Math.max(this.trouble ? RETRY : REST, SHARE * (now - begin));
    }
    this._changed.emit();
  }

  private take({ axis, range, names, points: asked }: Question, answer: MetricsAnswer, stamp: string): void {
    const store = this.stores[axis];
    const found = readAnswer(answer);
    const known = range ? store.part : store.whole;
    for (const [name, each] of range ? known : []) {
      if (each.range?.from !== range?.from || each.range?.to !== range?.to) {
        known.delete(name);
      }
    }
    // A name without points in the range is known as well.
    for (const name of new Set([...names, ...found.keys()])) {
      const metric = found.get(name) ?? { ranks: [], over: null, isFinest: answer.exact };
      known.delete(name); // so that it comes last
      known.set(name, { metric, range, points: answer.points, asked, together: found.size, stamp });
    }
    this.names = answer.names;
    this.state = answer.state;
    this.last = stamp;
    this.notes = answer.notes;
    this.version += 1;
  }
}

/** Extend a range by its margins, keeping as many points in the range itself. */
function around({ from, to }: Range, points: number): Pick<Question, 'range' | 'points'> {
  const beside = (to - from) * BESIDE;
  return { range: { from: from - beside, to: to + beside }, points: Math.ceil(points * (1 + 2 * BESIDE)) };
}

function covers(outer: Range | null, inner: Range): boolean {
  return outer !== null && outer.from <= inner.from && outer.to >= inner.to;
}

/** Whether the known data of a part shows this range as well as possible. */
function fits(known: Known | undefined, range: Range, points: number, together: number): boolean {
  if (!known?.range || !covers(known.range, range)) {
    return false;
  }
  const isClose = known.range.to - known.range.from <= CLOSER * (1 + 2 * BESIDE) * (range.to - range.from);
  return known.metric.isFinest || (isClose && !isRough(known, around(range, points).points, together));
}

/** Whether requesting more points, or fewer names at once, would return more points. */
function isRough({ metric, points, asked, together }: Known, wanted: number, names: number): boolean {
  return !metric.isFinest && points < wanted && (asked <= points || together > names);
}
