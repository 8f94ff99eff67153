/**
 * The line that one stream of one rank is writing: it may come in pieces, be overwritten by carriage
 * returns, carry its colour on to the next line, or never end.
 */
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
  // The colour in force where the line begins; it does not make an empty line a line.
  private colour = '';

  /** Take more output; returns the lines that it completed. */
  *feed(text: string): Generator<LineText> {
    let from = 0;
    for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', from)) {
      this.append(text, from, end);
      yield this.close();
      from = end + 1;
    }
    this.append(text, from, text.length);
  }

  /** Whether the line begins with the next character, in the default colour. */
  get isFresh(): boolean {
    return this.isEmpty && this.colour === '';
  }

  /** Whether nothing stands in the line. */
  get isEmpty(): boolean {
    return this.raw === '' && this.cut === 0;
  }

  /** The line as it stands now. */
  get current(): LineText {
    return { text: this.colour + shown(this.raw), cut: this.cut };
  }

  /** End the line, and begin the next with the colour in force. */
  close(): LineText {
    const line = this.current;
    if (line.text.includes('\x1b')) {
      this.colour = carried(this.colour + this.raw);
    }
    this.raw = '';
    this.cut = 0;
    return line;
  }

  private append(text: string, from: number, to: number): void {
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
