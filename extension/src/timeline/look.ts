/** How one looks at the timeline: which moments, what is open, what is chosen. */
import type { Columns } from './columns';
import type { Mark, Spot } from './find';
import { aired, inside, panned, showing, zoomed, type Range } from './range';

/** All spans are shown at first, unless they reach so many times farther than the run did. */
const FAR = 20;

/** What of it outlives a page. */
export interface SavedLook {
  /** Null for all. */
  range: Range | null;
  open: readonly string[] | null;
  meters: boolean;
  text: string;
  mark: Mark | null;
}

export class Look {
  /** All that can be looked at. */
  bounds: Range = { from: 0, to: 1e6 };
  range: Range = { from: 0, to: 1e6 };
  /** The part that is shown first: the run, without what lies far outside. */
  core: Range = { from: 0, to: 1e6 };
  /** Whether all is shown, so that a live run stays in sight as it grows. */
  isFitted = true;
  /** Whether somebody has looked at some part, or at a run that went on: nothing else is shown then. */
  isChosen = false;
  /** Whether it is what was shown at first. */
  isFirst = false;
  /** What is open; null until the reader says so. */
  open: Set<string> | null = null;
  meters = false;
  /** The span that was chosen, and where it stands now: others may come before it. */
  mark: Mark | null = null;
  chosen: Spot | null = null;
  /** A part of time that was selected. */
  part: Range | null = null;
  /** A moment that something else points at. */
  moment: number | null = null;
  text = '';
  /** The part that was looked at before, of which not all may be there yet. */
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

  /** There is more, or other: `wall` is how long the run took, if that is known. */
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

  /** Show this part at first. */
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

  /** Show just this range. */
  goTo(range: Range): void {
    this.set(inside(range, this.bounds));
  }

  /** Select a part of time, or nothing; and no span. */
  select(part: Range | null): void {
    this.part = part;
    this.mark = this.chosen = null;
  }

  /** What is selected, then the run, then all there is. */
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

/** A run begins at 0; spans of other programs may begin anywhere. */
function nearZero({ from, to }: Range): Range {
  return from > 0 && from < to - from ? { from: 0, to } : { from, to };
}

function same(a: Range, b: Range): boolean {
  const close = (b.to - b.from) * 1e-6;
  return Math.abs(a.from - b.from) <= close && Math.abs(a.to - b.to) <= close;
}

/** When a span is. */
export function whenOf({ start, dur }: Columns, i: number): Range {
  return { from: start[i], to: start[i] + dur[i] };
}
