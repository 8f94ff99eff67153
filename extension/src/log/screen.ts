/**
 * The lines that one stream of one rank may still change: the one being written and, for progress
 * bars below one another (tqdm's, with a position), those above to which the cursor moves back. The
 * summary does the same (`lab/rankroom/display/screen.py`).
 */
import { OpenLine, type LineText } from './openline';

const UP = '\x1b\\[(\\d*)A';
/** Lines that a stream can move back up. */
const HIGHEST = 20;

export class Screen {
  private lines = [new OpenLine()];
  /** The line that is being written. */
  private at = 0;
  /** How far up the stream is known to move. */
  private height = 0;
  /** Lines ended since it last moved up. */
  private sinceUp = 0;

  /** Take more output; yield the lines that become final. */
  *feed(text: string): Generator<LineText> {
    if (text.includes('\x1b[') && new RegExp(UP).test(text)) {
      for (const line of text.split('\n')) {
        this.height = Math.min(HIGHEST, Math.max(this.height, climbed(line)));
      }
    }
    if (this.height === 0) {
      yield* this.write(text);
      return;
    }
    // Every second part is the count of a move up.
    const parts = text.split(new RegExp(UP));
    for (let i = 0; i < parts.length; i += 2) {
      if (i > 0) {
        this.up(Number(parts[i - 1]) || 1);
      }
      yield* this.write(parts[i]);
    }
  }

  /** Whether nothing is pending, and further output begins in the default color. */
  get isFresh(): boolean {
    return this.isEmpty && this.lines.length === 1 && this.lines[0].colour === '';
  }

  get isEmpty(): boolean {
    return this.lines.every(line => line.isEmpty);
  }

  /** The lines as they stand now, without empty ones at the end. */
  get current(): LineText[] {
    const last = this.lines.reduce((found, line, i) => (line.isEmpty ? found : i), -1);
    return this.lines.slice(0, last + 1).map(line => line.current);
  }

  private *write(text: string): Generator<LineText> {
    let from = 0;
    for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', from)) {
      this.lines[this.at].append(text, from, end);
      yield* this.down();
      from = end + 1;
    }
    this.lines[this.at].append(text, from, text.length);
  }

  /** Move up. The column stays: at a line's start, where rich moves up, output goes on at the upper line's start. */
  private up(count: number): void {
    const { isAtBegin } = this.lines[this.at];
    this.at = Math.max(0, this.at - count);
    this.sinceUp = 0;
    if (isAtBegin) {
      this.lines[this.at].back();
    }
  }

  /** Move to the start of the next line; yield the lines that become final. */
  private *down(): Generator<LineText> {
    const { colourAfter } = this.lines[this.at];
    this.at += 1;
    this.sinceUp += 1;
    if (this.at < this.lines.length) {
      this.lines[this.at].back();
    } else {
      this.lines.push(new OpenLine(colourAfter));
    }
    if (this.sinceUp > this.height + 1) {
      // No more bars: lines become final at once again.
      this.height = 0;
    }
    while (this.lines.length > this.height + 1 && this.at > 0) {
      yield (this.lines.shift() as OpenLine).current;
      this.at -= 1;
    }
  }
}

/** The number of lines that a text without line ends moves up. */
function climbed(text: string): number {
  return [...text.matchAll(new RegExp(UP, 'g'))].reduce((sum, [, count]) => sum + (Number(count) || 1), 0);
}
