/** Which lines form a group. It is identified by its first line, and has a key: its position in the order. */
import { Column } from './column';
import type { Lines } from './lines';

/** What a group stands for: equal lines, lines that differ in numbers, or start-up messages. */
export const SAME = 0;
export const DIFFERS = 1;
export const FOLD = 2;

export class Groups {
  protected keys = new Column(Float64Array);
  protected kinds = new Column(Uint8Array);
  private leaders = new Column(Uint32Array);
  // Members as a linked list: from the group to its newest line, and on to older ones; 0 ends it.
  private nexts = new Column(Uint32Array);

  constructor(protected lines: Lines) {}

  /** The group's position in the order. */
  key(group: number): number {
    return this.keys.get(group);
  }

  /** The group that a line is in. */
  group(line: number): number {
    return this.leaders.get(line);
  }

  /** What the group stands for: SAME, DIFFERS or FOLD. */
  kind(group: number): number {
    return this.kinds.get(group);
  }

  /** The ranks that wrote the group's lines, ascending, each once. */
  ranks(group: number): number[] {
    const ranks = this.members(group).map(line => this.lines.rank(line));
    return ranks.filter((rank, i) => rank !== ranks[i - 1]);
  }

  /** The group's lines, in the order of ranks. */
  members(group: number): number[] {
    const gap = this.lines.gap;
    const members = [group];
    for (let line = this.nexts.get(group); line; line = this.nexts.get(line)) {
      if (line >= gap.to || line < gap.from) {
        members.push(line);
      }
    }
    return members.sort((a, b) => this.lines.rank(a) - this.lines.rank(b) || a - b);
  }

  /** Whether one of these ranks wrote a line of the group. */
  isOf(group: number, ranks: ReadonlySet<number>): boolean {
    for (let line = group, first = true; line || first; line = this.nexts.get(line)) {
      if (ranks.has(this.lines.rank(line))) {
        return true;
      }
      first = false;
    }
    return false;
  }

  /** Make the line a group of its own. */
  protected found(line: number, kind: number): void {
    if (kind !== SAME) {
      this.kinds.set(line, kind);
    }
    this.keys.set(line, line);
    this.leaders.set(line, line);
    this.nexts.set(line, 0);
  }

  /** Add the line to the group. */
  protected link(group: number, line: number): void {
    this.keys.set(line, this.key(group));
    this.leaders.set(line, group);
    this.nexts.set(line, this.nexts.get(group));
    this.nexts.set(group, line);
  }

  /** Drop the lines `from` up to `to`. */
  protected forget(from: number, to: number): void {
    for (const column of [this.keys, this.leaders, this.kinds, this.nexts]) {
      column.drop(from, to);
    }
  }
}
