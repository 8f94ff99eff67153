/**
 * All lines of a run, compact: texts as a few long strings, everything else in typed arrays.
 *
 * Lines are numbered from 0 in the order in which they were completed. Beyond the bounds `most`, lines in
 * the middle are dropped: the head and the newest stay, and `gap` says which are missing.
 */
import { trans } from '../translation';
import { BLOCK, Column } from './column';
import { columnsOf } from './width';
import { plain } from './ansi';

export const STDERR = 1;
/** The line contains escape sequences or control characters. */
export const STYLED = 2;
/** A line that the view added: the error that a rank raised. */
export const ERROR = 4;
/** A line that the view added: the note of a rank's status. */
export const NOTE = 8;

const PAGE = 1 << 16;
const WIDEST = 0xffff;
// eslint-disable-next-line no-control-regex
const ODD = /[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/;

export interface Bounds {
  /** Lines kept at most. */
  lines: number;
  /** Characters kept at most. */
  chars: number;
}

/** Where a text was put. */
export interface Spot {
  page: number;
  start: number;
}

export class Lines {
  length = 0;
  /** Lines `from` up to `to` were dropped. */
  readonly gap = { from: 0, to: 0 };

  private page = new Column(Uint32Array);
  private start = new Column(Uint32Array);
  private size = new Column(Uint32Array);
  private ranks = new Column(Uint16Array);
  private flagged = new Column(Uint8Array);
  private widths = new Column(Uint16Array);
  private times = new Column(Float64Array);
  private pages: Array<string | undefined> = [''];
  private cuts = new Map<number, number>();
  private chars = 0;
  /** Pages between those of the head and this one were dropped. */
  private freed = 0;

  constructor(private most: Bounds = { lines: 1_000_000, chars: 100_000_000 }) {}

  /** Add one line and return its number. `cut` characters at its end were left out. */
  add(text: string, rank: number, flags: number, t: number, cut = 0): number {
    const odd = ODD.test(text);
    const width = columnsOf(odd ? plain(text) : text) + (cut ? cutNote(cut).length : 0);
    if (cut) {
      this.cuts.set(this.length, cut);
    }
    const at = this.put(text);
    return this.row(at, 0, text.length, rank, flags | (odd ? STYLED : 0), t, width);
  }

  /** Store a text of many lines; `row` then adds each line by its position in the text. */
  put(text: string): Spot {
    this.chars += text.length;
    const page = this.pages.length - 1;
    const before = this.pages[page];
    if (before !== undefined && before.length + text.length <= PAGE) {
      this.pages[page] = before + text;
      return { page, start: before.length };
    }
    return { page: this.pages.push(text) - 1, start: 0 };
  }

  /** Add a line of `size` characters, `from` characters after a spot; return its number. `width` is in columns. */
  row(
    spot: Spot,
    from: number,
    size: number,
    rank: number,
    flags: number,
    t: number,
    width: number
  ): number {
    const line = this.length++;
    this.page.set(line, spot.page);
    this.start.set(line, spot.start + from);
    this.size.set(line, size);
    this.ranks.set(line, rank);
    this.flagged.set(line, flags);
    this.widths.set(line, Math.min(width, WIDEST));
    this.times.set(line, t);
    return line;
  }

  text(line: number): string {
    const start = this.start.get(line);
    return (this.pages[this.page.get(line)] ?? '').slice(start, start + this.size.get(line));
  }

  rank(line: number): number {
    return this.ranks.get(line);
  }

  flags(line: number): number {
    return this.flagged.get(line);
  }

  /** Columns the line takes. */
  width(line: number): number {
    return this.widths.get(line);
  }

  /** Microseconds since the run's start. */
  time(line: number): number {
    return this.times.get(line);
  }

  /** Characters that were left out at the line's end. */
  cut(line: number): number {
    return this.cuts.get(line) ?? 0;
  }

  /** The first line with a flag; -1 if there is none. */
  first(flag: number): number {
    for (let line = 0; line < this.length; line++) {
      if (this.flags(line) & flag) {
        return line;
      }
    }
    return -1;
  }

  /**
   * Return the line nearest in time to `t`, of this rank if it wrote any; -1 if there are no lines. Microseconds;
   * `offset` is how far a rank's clock is ahead.
   */
  nearest(t: number, rank: number | null, offset: (rank: number) => number): number {
    let [best, nearest] = [-1, Infinity];
    for (let line = 0; line < this.length; line++) {
      if (line === this.gap.from) {
        line = Math.max(line, this.gap.to);
      }
      if (rank === null || this.rank(line) === rank) {
        const distance = Math.abs(this.time(line) - offset(this.rank(line)) - t);
        if (distance < nearest) {
          [best, nearest] = [line, distance];
        }
      }
    }
    return best < 0 && rank !== null ? this.nearest(t, null, offset) : best;
  }

  /** The number of lines in memory. */
  get kept(): number {
    return this.length - (this.gap.to - this.gap.from);
  }

  /** The number of characters in memory. */
  get weight(): number {
    return this.chars;
  }

  /** Drop the oldest lines after the head if there are too many; return whether any were dropped. */
  trim(): boolean {
    const head = this.gap.from || this.headEnd();
    const from = this.gap.to || head;
    let to = from;
    let over = this.kept - this.most.lines;
    while ((over > 0 || this.chars > this.most.chars) && to + 2 * BLOCK < this.length) {
      // Drop more than needed, so that this is rare.
      const next = Math.min(to + 32 * BLOCK, this.length - (this.length % BLOCK) - BLOCK);
      this.free(to, next);
      over -= next - to;
      to = next;
    }
    if (to === from) {
      return false;
    }
    this.gap.from = head;
    this.gap.to = to;
    return true;
  }

  /** Return where the head ends: it is a fifth of what may be kept. */
  private headEnd(): number {
    const lines = Math.min(this.length, this.most.lines / 5);
    const share = Math.min(1, this.most.chars / 5 / (this.chars || 1));
    const fitting = Math.min(lines, this.length * share);
    return Math.max(BLOCK, Math.floor(fitting / BLOCK) * BLOCK);
  }

  private free(from: number, to: number): void {
    const first = this.freed || this.page.get(from - 1) + 1;
    const last = this.page.get(to);
    for (let page = first; page < last; page++) {
      this.chars -= this.pages[page]?.length ?? 0;
      this.pages[page] = undefined;
    }
    this.freed = last;
    for (const column of [this.page, this.start, this.size, this.ranks, this.flagged, this.widths]) {
      column.drop(from, to);
    }
    this.times.drop(from, to);
    for (const line of this.cuts.keys()) {
      if (line >= from && line < to) {
        this.cuts.delete(line);
      }
    }
  }
}

/** The note at the end of a line that is not shown in full. */
export function cutNote(cut: number): string {
  return ` ${trans._n('… %2 more character in the whole log', '… %2 more characters in the whole log', cut, cut.toLocaleString('en'))}`;
}
