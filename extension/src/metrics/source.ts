/** Asks the server for the curves that are looked at: one question at a time, and of a live run not too often. */
import { Signal, type ISignal } from '@lumino/signaling';

import type { RunModel } from '../run/model';
import type { RunState } from '../schema';
import type { Range } from '../timeline/range';
import { readAnswer, type Metric, type MetricsAnswer, type NameInfo } from './answer';
import type { XAxis } from './choice';

/** Milliseconds between two looks at a live run, how often longer than one of them took, and after one that failed. */
const REST = 1_000;
const SHARE = 5;
const RETRY = 5_000;
/** While a range is moved it is not asked for. */
const SETTLE = 200;
/** So much beside a range comes with it, as a share: it is soon moved there. */
const BESIDE = 0.5;
/** Curves in one answer, of all its names: the server's CURVES_AT_ONCE, where each still has some points. */
const CURVES_AT_ONCE = 2_500;
/** A range that is so many times shorter than what is known is asked for anew. */
const CLOSER = 2;

export interface Question {
  axis: XAxis;
  /** Null for all. */
  range: Range | null;
  points: number;
  /** None for the first names that there are. */
  names: readonly string[];
}

export interface MetricsServer {
  metrics(id: string, question: Question): Promise<MetricsAnswer>;
}

/** What the reader looks at now. */
export interface Sought {
  axis: XAxis;
  /** Null for all. */
  range: Range | null;
  names: readonly string[];
  /** As many as there is room for. */
  points: number;
}

interface Known {
  metric: Metric;
  range: Range | null;
  /** Of a curve at most, and how many were asked for. */
  points: number;
  asked: number;
  /** How many names it was asked for with. */
  together: number;
  /** Stands for what had been reported by then. */
  stamp: string;
}

interface Store {
  whole: Map<string, Known>;
  /** The part that was looked at last. */
  part: Map<string, Known>;
}

const emptyStore = (): Store => ({ whole: new Map(), part: new Map() });

export class MetricsSource {
  /** Every metric that there is; null until the first answer. */
  names: readonly NameInfo[] | null = null;
  notes: readonly string[] = [];
  /** How the run stood at the last answer. */
  state: RunState | null = null;
  /** Why the last question has no answer, in a sentence; '' if it has. */
  trouble = '';
  /** Counts answers. */
  version = 0;

  private stores: { [axis in XAxis]: Store } = { step: emptyStore(), time: emptyStore() };
  private isAsking = false;
  /** Stands for what had been reported by the last answer. */
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

  /** There is an answer, or it is time to ask. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  dispose(): void {
    clearTimeout(this.timer);
    Signal.clearData(this);
  }

  /** The best that is known of a metric in a range. */
  metric(name: string, axis: XAxis, range: Range | null): Metric | null {
    const { whole, part } = this.stores[axis];
    const close = part.get(name);
    const known = range && close && covers(close.range, range) ? close : whole.get(name);
    return known?.metric ?? null;
  }

  /** Ask for what is looked at, if it is not known. To be called while it is seen. */
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

  /** Whether all that is sought is known. */
  isUpToDate(sought: Sought): boolean {
    return this.names !== null && this.question(sought) === null;
  }

  private get stamp(): string {
    const { isLive, metricEvents, generation } = this.model;
    // A run that was lost may have come back and ended.
    return isLive ? `${metricEvents} so far` : `all ${generation}`;
  }

  /** What is to be asked next, and whether it is not only to see what came since. */
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
    // Those first that have waited longest: more may be reported before all are asked for.
    const close = [...part.keys()].filter(name => names.includes(name) && isClose(name) && isOld(part.get(name)));
    if (close.length) {
      return { ...around(range!, points), axis, names: [...new Set([...close, ...names])], isNew: false };
    }
    const old = [...whole.keys()].filter(name => names.includes(name) && !isClose(name) && isOld(whole.get(name)));
    return old.length ? { axis, range: null, names: old, points, isNew: false } : null;
  }

  /** The first of these names, of which one answer has the curves; one at least. */
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
    // A name without points in the range has an answer as well.
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

/** With what is beside it, and as many points in the range itself. */
function around({ from, to }: Range, points: number): Pick<Question, 'range' | 'points'> {
  const beside = (to - from) * BESIDE;
  return { range: { from: from - beside, to: to + beside }, points: Math.ceil(points * (1 + 2 * BESIDE)) };
}

function covers(outer: Range | null, inner: Range): boolean {
  return outer !== null && outer.from <= inner.from && outer.to >= inner.to;
}

/** Whether what is known of a part shows this range as well as may be. */
function fits(known: Known | undefined, range: Range, points: number, together: number): boolean {
  if (!known?.range || !covers(known.range, range)) {
    return false;
  }
  const isClose = known.range.to - known.range.from <= CLOSER * (1 + 2 * BESIDE) * (range.to - range.from);
  return known.metric.isFinest || (isClose && !isRough(known, around(range, points).points, together));
}

/** Whether there would be more points if more were asked for, or fewer names at once. */
function isRough({ metric, points, asked, together }: Known, wanted: number, names: number): boolean {
  return !metric.isFinest && points < wanted && (asked <= points || together > names);
}
