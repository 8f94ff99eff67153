/** A line that is being written: it may arrive in pieces, be overwritten, or never end. */
import { carried } from './ansi';
import { moves, overprint } from './overprint';

/** Characters of one line that are kept; the rest is only counted. */
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

  /** `colour` is the SGR sequence in force where the line begins; it alone does not make the line non-empty. */
  constructor(readonly colour = '') {}

  /** Whether the line holds nothing. */
  get isEmpty(): boolean {
    return this.raw === '' && this.cut === 0;
  }

  /** The line as a terminal shows it now. */
  get current(): LineText {
    return { text: this.colour + shown(this.raw), cut: this.cut };
  }

  /** The SGR sequence in force at the line's end; '' if there is none. */
  get colourAfter(): string {
    const text = this.colour + this.raw;
    return text.includes('\x1b') ? carried(text) : '';
  }

  /** Whether the next character goes to the line's start. */
  get isAtBegin(): boolean {
    const last = this.raw.slice(this.raw.lastIndexOf('\r') + 1);
    // eslint-disable-next-line no-control-regex
    return this.cut === 0 && last.replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, '') === '';
  }

  /** Move back to the line's start. */
  back(): void {
    this.raw += this.isEmpty ? '' : '\r';
  }

  /** Write the characters `from` up to `to` of `text`, which include no line end. */
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
    const room = Math.max(0, LONGEST - this.raw.length);
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
