/** The state of a timeline view: the visible range, the open lanes, and the selection. */
import type { Columns } from './columns';
import type { Mark, Spot } from './find';
import { aired, inside, panned, showing, zoomed, type Range } from './range';

/** All spans are shown initially, unless they extend over more than this many times the run's duration. */
const FAR = 20;

/** The part of the state that survives a page reload. */
export interface SavedLook {
  /** Null for all. */
  range: Range | null;
  open: readonly string[] | null;
  meters: boolean;
  text: string;
  mark: Mark | null;
}

export class Look {
  /** The whole range that can be shown. */
  bounds: Range = { from: 0, to: 1e6 };
  range: Range = { from: 0, to: 1e6 };
  /** The range shown by default: the run, without spans far outside it. */
  core: Range = { from: 0, to: 1e6 };
  /** Whether `core` is shown, so that the range grows with a live run. */
  isFitted = true;
  /** Whether the range is settled, as the reader chose one or saw the run live: `begin` has no effect then. */
  isChosen = false;
  /** Whether the range is still the one set by `begin`. */
  isFirst = false;
  /** The keys of open lanes; null until the default is set or the reader opens one. */
  open: Set<string> | null = null;
  meters = false;
  /** The chosen span, and its current index, which changes when spans are inserted before it. */
  mark: Mark | null = null;
  chosen: Spot | null = null;
  /** The selected time range. */
  part: Range | null = null;
  /** A moment highlighted from elsewhere, such as from a log line. */
  moment: number | null = null;
  text = '';
  /** A saved range to restore, which may not be loaded completely yet. */
  private sought: Range | null = null;

  constructor(saved?: SavedLook) {
    if (saved) {
      this.open = saved.open && new Set(saved.open);
      this.meters = saved.meters;
      this.text = saved.text;
      this.mark = saved.mark;
      this.sought = saved.range;
      this.isChosen = saved.range !== null;
      this.isFitted = saved.range === null;
    }
  }

  toJSON(): SavedLook {
    const { open, meters, text, mark } = this;
    const range = this.isFitted || !this.isChosen ? null : (this.sought ?? this.range);
    return { range, open: open && [...open], meters, text, mark };
  }

  /** Adapt to a new extent of the spans; `wall` is the run's duration in microseconds, if known. */
  setExtent(extent: Range, wall: number | null): void {
    const { from, to } = nearZero(extent);
    this.bounds = aired({ from, to: from <= 0 ? Math.max(to, wall ?? 0) : to });
    const isFar = wall !== null && wall > 0 && this.bounds.to - this.bounds.from > FAR * wall;
    this.core = isFar ? aired({ from: 0, to: wall }) : this.bounds;
    this.range = this.isFitted ? this.core : inside(this.sought ?? this.range, this.bounds);
  }

  /** Whether some spans lie far from the run. */
  get isFar(): boolean {
    return this.bounds.to - this.bounds.from > FAR * (this.core.to - this.core.from);
  }

  /** Show this range initially, unless the range is settled. */
  begin(what: Range): void {
    if (!this.isChosen) {
      this.zoomTo(what);
      this.isFirst = true;
    }
  }

  zoom(at: number, factor: number): void {
    this.set(zoomed(this.range, at, factor, this.bounds));
  }

  pan(by: number): void {
    this.set(panned(this.range, by, this.bounds));
  }

  show(what: Range): void {
    this.set(showing(this.range, what, this.bounds));
  }

  zoomTo(what: Range): void {
    this.goTo(aired(what));
  }

  /** Show exactly this range, within the bounds. */
  goTo(range: Range): void {
    this.set(inside(range, this.bounds));
  }

  /** Select a time range, or nothing if null; no span is chosen then. */
  select(part: Range | null): void {
    this.part = part;
    this.mark = this.chosen = null;
  }

  /** Show the selection `what`; if it is shown already, or null, the run; if that is shown already, all spans. */
  fit(what: Range | null): void {
    this.isChosen = true;
    this.isFirst = false;
    const wanted = what ? inside(aired(what), this.bounds) : this.core;
    if (what && !same(wanted, this.range)) {
      this.set(wanted);
    } else if (same(this.core, this.range) && this.isFar) {
      this.set(this.bounds);
    } else {
      this.range = this.core;
      this.isFitted = true;
      this.sought = null;
    }
  }

  private set(range: Range): void {
    this.sought = null;
    this.isChosen = true;
    this.isFirst = false;
    this.range = range;
    this.isFitted = same(range, this.core);
  }
}

/** Start the range at 0, as a run does, unless that is far away: spans of other programs may begin anywhere. */
function nearZero({ from, to }: Range): Range {
  return from > 0 && from < to - from ? { from: 0, to } : { from, to };
}

function same(a: Range, b: Range): boolean {
  const close = (b.to - b.from) * 1e-6;
  return Math.abs(a.from - b.from) <= close && Math.abs(a.to - b.to) <= close;
}

/** Return the time range of a span. */
export function whenOf({ start, dur }: Columns, i: number): Range {
  return { from: start[i], to: start[i] + dur[i] };
}
