/** The log of a run: turns the ranks' output, which arrives in pieces, into lines and groups of lines. */
import type { LogEvent } from '../schema';
import { Collapse } from './collapse';
import { Lines, STDERR, type Bounds, type ERROR, type NOTE } from './lines';
import { LONGEST } from './openline';
import { Screen } from './screen';

/** A line that its rank has not ended yet. */
export interface Unfinished {
  rank: number;
  flags: number;
  text: string;
  cut: number;
}

interface Stream {
  rank: number;
  flags: number;
  screen: Screen;
  t: number;
}

const PLAIN = /^[\n\x20-\x7e]*$/;
const STEP = 200;

export class Log {
  readonly lines: Lines;
  readonly collapse: Collapse;
  private numbers: Collapse | null = null;
  private streams = new Map<number, Stream>();

  constructor(bounds?: Bounds) {
    this.lines = new Lines(bounds);
    this.collapse = new Collapse(this.lines);
  }

  /** Groups of lines that differ at most in numbers; the caller must make it take in lines (`takeIn`). */
  get byNumbers(): Collapse {
    this.numbers ??= new Collapse(this.lines, true);
    return this.numbers;
  }

  /** Add what a rank wrote; each step takes a fraction of a millisecond. */
  *write(event: LogEvent): Generator<void> {
    const flags = event.stream === 'stderr' ? STDERR : 0;
    const stream = this.stream(event.rank, flags, event.t);
    let text = event.text;
    if (!stream.screen.isFresh) {
      const end = text.indexOf('\n') + 1 || text.length;
      yield* this.feed(stream, text.slice(0, end), event.t);
      text = text.slice(end);
    }
    const whole = text.lastIndexOf('\n') + 1;
    if (whole && stream.screen.isFresh && PLAIN.test(text)) {
      yield* this.cutLines(stream, text, event.t);
      text = text.slice(whole);
    }
    yield* this.feed(stream, text, event.t);
    this.trim();
  }

  /** Add a line that the rank did not write, about its error or status. */
  remark(text: string, rank: number, kind: typeof ERROR | typeof NOTE, t: number): void {
    this.add(text, rank, kind, t, 0);
  }

  /** End all lines: nothing more will come. */
  end(): void {
    for (const stream of this.unfinishedStreams()) {
      for (const { text, cut } of stream.screen.current) {
        this.add(text, stream.rank, stream.flags, stream.t, cut);
      }
    }
    this.streams.clear();
  }

  /** The lines that ranks have not ended yet, in the order of ranks; those of stderr last. */
  get unfinished(): Unfinished[] {
    return this.unfinishedStreams().flatMap(({ rank, flags, screen }) =>
      screen.current.map(line => ({ rank, flags, ...line }))
    );
  }

  private unfinishedStreams(): Stream[] {
    return [...this.streams.values()]
      .filter(stream => !stream.screen.isEmpty)
      .sort((a, b) => a.flags - b.flags || a.rank - b.rank);
  }

  private stream(rank: number, flags: number, t: number): Stream {
    const key = 2 * rank + flags;
    let stream = this.streams.get(key);
    if (!stream) {
      stream = { rank, flags, screen: new Screen(), t };
      this.streams.set(key, stream);
    }
    if (stream.screen.isEmpty) {
      stream.t = t;
    }
    return stream;
  }

  private *feed(stream: Stream, text: string, t: number): Generator<void> {
    let count = 0;
    for (const line of stream.screen.feed(text)) {
      this.add(line.text, stream.rank, stream.flags, stream.t, line.cut);
      stream.t = t;
      if (++count % STEP === 0) {
        yield;
      }
    }
  }

  private add(text: string, rank: number, flags: number, t: number, cut: number): void {
    const line = this.lines.add(text, rank, flags, t, cut);
    this.collapse.add(line, text);
  }

  /** The fast path for most output: whole lines of plain characters, stored as one text without copying each line. */
  private *cutLines(stream: Stream, text: string, t: number): Generator<void> {
    const { rank, flags } = stream;
    const spot = this.lines.put(text);
    let from = 0;
    let count = 0;
    for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', from)) {
      if (end - from > LONGEST) {
        this.add(text.slice(from, from + LONGEST), rank, flags, t, end - from - LONGEST);
      } else {
        const line = this.lines.row(spot, from, end - from, rank, flags, t, end - from);
        this.collapse.add(line, text.slice(from, end));
      }
      from = end + 1;
      if (++count % STEP === 0) {
        yield;
      }
    }
  }

  private trim(): void {
    const before = this.lines.gap.to;
    if (this.lines.trim()) {
      for (const collapse of [this.collapse, this.numbers]) {
        collapse?.drop(before || this.lines.gap.from, this.lines.gap.to);
      }
    }
  }
}
