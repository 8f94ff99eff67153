/** A line that is being written: it may come in pieces, be overwritten, or never end. */
import { carried } from './ansi';
import { moves, overprint } from './overprint';

/** Characters of one line that are kept; the rest is counted. */
export const LONGEST = 10_000;
const COMPACT = 2_000;

export interface LineText {
  text: string;
  /** Characters that were left out at the end. */
  cut: number;
}

export class OpenLine {
  private raw = '';
  private cut = 0;

  /** `colour` is in force where the line begins; it does not make an empty line a line. */
  constructor(readonly colour = '') {}

  /** Whether nothing stands in the line. */
  get isEmpty(): boolean {
    return this.raw === '' && this.cut === 0;
  }

  /** The line as it stands now. */
  get current(): LineText {
    return { text: this.colour + shown(this.raw), cut: this.cut };
  }

  /** The colour in force at its end. */
  get colourAfter(): string {
    const text = this.colour + this.raw;
    return text.includes('\x1b') ? carried(text) : '';
  }

  /** Whether what is written next is written at the line's begin. */
  get isAtBegin(): boolean {
    const last = this.raw.slice(this.raw.lastIndexOf('\r') + 1);
    // eslint-disable-next-line no-control-regex
    return this.cut === 0 && last.replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, '') === '';
  }

  /** Go on at the line's begin. */
  back(): void {
    this.raw += this.isEmpty ? '' : '\r';
  }

  /** Write the characters of `text` from `from` up to `to`; no line end is among them. */
  append(text: string, from: number, to: number): void {
    if (this.cut) {
      const back = text.includes('\r') ? text.lastIndexOf('\r', to - 2) : -1;
      if (back < from) {
        this.cut += to - from;
        return;
      }
      this.raw = '';
      this.cut = 0;
      from = back + 1;
    }
    const room = LONGEST - this.raw.length;
    if (to - from <= room) {
      this.raw += text.slice(from, to);
    } else if (text.slice(from, to).includes('\r')) {
      this.raw = overprint(this.raw + text.slice(from, to)).resume;
    } else {
      this.raw += text.slice(from, from + room);
      this.cut = to - from - room;
    }
    if (this.raw.length > COMPACT && moves(this.raw)) {
      this.raw = overprint(this.raw).resume;
    }
    if (this.raw.length > 2 * LONGEST) {
      this.cut += this.raw.length - LONGEST;
      this.raw = this.raw.slice(0, LONGEST);
    }
  }
}

function shown(raw: string): string {
  const text = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
  return moves(text) ? overprint(text).text : text;
}
