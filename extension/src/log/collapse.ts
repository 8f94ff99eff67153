/**
 * Equal lines of several ranks become one group, and the order of each rank's own lines never changes.
 *
 * A line joins the earliest group of the same text and stream that follows its rank's last
 * group. What only this rank wrote in between moves in front of that group, as a reader expects:
 *
 *     0–1 │ hello
 *     0   │ I am rank 0
 *     1   │ I am rank 1
 *     0–1 │ done
 *
 * A group is identified by its first line. Its `key` is its position in the order: that line's number, or
 * a fraction below the key of the group that it was moved in front of. The result depends only on the
 * order of the lines, not on the pieces in which they arrived. Consecutive start-up messages of TensorFlow
 * from one rank count as one line, which is equal on all ranks.
 */
import { lowerBound } from '../lowerbound';
import { NumberList } from './column';
import { DIFFERS, FOLD, Groups, SAME } from './groups';
import { STDERR, type Lines } from './lines';
import { commonText } from './numbers';
import { FOLD_MOST, isStartupMessage } from './startup';

/** A group can be joined until this many lines have come after it. */
export const WINDOW = 20_000;
/** The most groups of one rank alone that can move in front of a group that it joins. */
const MOVABLE = 16;
// The steps of two levels of fractions, coarse enough that the keys of four billion lines are exact.
const STEP = 2 ** -10;
const FINE_STEP = 2 ** -20;

/** The lowest keys at which the order, or a group's members, changed; the watcher resets them to Infinity. */
export interface Changes {
  order: number;
  members: number;
}

/** The common text of start-up messages; no line contains it. */
const STARTUP = '\n';

/** The position of one rank in the order. */
class Place {
  /** Key of the last group that can no longer move. */
  fixed = -1;
  /** Later groups of this rank alone, which may still move. */
  movable: number[] = [];
  /** The fold that holds its last line (-1 if none does), and the number of its lines there. */
  fold = -1;
  folded = 0;

  settle(count: number): void {
    this.fixed = Math.max(this.fixed, ...this.movable.splice(0, count));
  }
}

export class Collapse extends Groups {
  /** The groups in order, settled by `settle`. */
  readonly order = new NumberList();

  private places = new Map<number, Place>();
  private groups: [Map<string, number[]>, Map<string, number[]>] = [new Map(), new Map()];
  private moved: number[] = [];
  private movedInFrontOf = new Map<number, number>();
  private sweepAt = 2 * WINDOW;
  private watchers = new Set<Changes>();
  private dirty = Infinity;
  private taken = 0;

  /** `byNumbers` also joins lines that differ only in numbers. */
  constructor(
    lines: Lines,
    private byNumbers = false
  ) {
    super(lines);
  }

  /** Take in the next line; `text` is its text. */
  add(line: number, text: string): void {
    this.taken = line + 1;
    const rank = this.lines.rank(line);
    const place = this.placeOf(rank);
    const common = this.common(text, line, rank);
    if (common === STARTUP) {
      this.fold(line, rank, place);
    } else {
      place.fold = -1;
      this.enterAny(common, line, rank, place);
    }
    if (line >= this.sweepAt) {
      this.sweep(line - WINDOW);
      this.sweepAt = line + WINDOW;
    }
  }

  /** Whether the log has lines that were not added yet. */
  get isBehind(): boolean {
    return this.taken < this.lines.length;
  }

  /** Add at most `most` of the lines that were not added yet. */
  takeIn(most: number): void {
    const { gap } = this.lines;
    for (let i = 0; i < most && this.isBehind; i++) {
      this.taken = this.taken >= gap.from && this.taken < gap.to ? gap.to : this.taken;
      this.add(this.taken, this.lines.text(this.taken));
    }
  }

  /** Return a record of what changes from now on, which is updated until `unwatch`. */
  watch(): Changes {
    const changes = { order: Infinity, members: Infinity };
    this.watchers.add(changes);
    return changes;
  }

  unwatch(changes: Changes): void {
    this.watchers.delete(changes);
  }

  /** Bring `order` up to date. */
  settle(): void {
    if (this.moved.length) {
      this.merge();
    }
    this.dirty = Infinity;
  }

  /** Drop the lines `from` up to `to`, which the log no longer has. */
  drop(from: number, to: number): void {
    this.settle();
    // A dropped line may have been moved in front of one that stays.
    const start = this.position(from - WINDOW);
    const tail = this.order.tail(start);
    this.order.cut(start);
    tail.filter(group => group < from || group >= to).forEach(group => this.order.push(group));
    this.forget(from, to);
    this.sweep(Math.max(to, this.lines.length - WINDOW));
    for (const place of this.places.values()) {
      place.settle(place.movable.filter(own => own < to).length);
      place.fold = place.fold < to ? -1 : place.fold;
    }
    this.changed(Math.max(0, from - WINDOW));
  }

  /** The first position in `order` whose key is at least `key`. */
  position(key: number): number {
    return lowerBound(this.order.length, at => this.key(this.order.at(at)), key);
  }

  private changed(key: number): void {
    this.dirty = Math.min(this.dirty, key);
    for (const changes of this.watchers) {
      changes.order = Math.min(changes.order, key);
    }
  }

  private placeOf(rank: number): Place {
    let place = this.places.get(rank);
    if (!place) {
      place = new Place();
      this.places.set(rank, place);
    }
    return place;
  }

  /** Return the text that a line has in common with all lines of its group. */
  private common(text: string, line: number, rank: number): string {
    if (this.lines.flags(line) & STDERR && isStartupMessage(text)) {
      return STARTUP;
    }
    return this.byNumbers ? commonText(text, rank) : text;
  }

  /** Add a start-up message to the rank's current fold, or begin a new one. */
  private fold(line: number, rank: number, place: Place): void {
    if (place.fold >= 0 && place.folded < FOLD_MOST && place.fold + WINDOW >= line) {
      this.enter(place.fold, line);
      place.folded += 1;
    } else {
      place.fold = this.enterAny(STARTUP, line, rank, place);
      place.folded = 1;
    }
  }

  /** Join a group, or begin one; return the group. */
  private enterAny(common: string, line: number, rank: number, place: Place): number {
    const stream = this.groups[this.lines.flags(line) & STDERR];
    const same = stream.get(common);
    const group = same === undefined ? undefined : this.match(same, line, rank, place);
    if (group !== undefined && this.moveInFrontOf(group, place)) {
      this.join(group, line, place);
      return group;
    }
    this.begin(line, place, common === STARTUP ? FOLD : SAME);
    if (same === undefined) {
      stream.set(common, [line]);
    } else {
      same.push(line);
    }
    return line;
  }

  /** The earliest of these groups that the rank can join; they are ordered by key. */
  private match(same: number[], line: number, rank: number, place: Place): number | undefined {
    const first = lowerBound(same.length, at => this.key(same[at]), place.fixed);
    for (let at = first; at < same.length; at++) {
      const group = same[at];
      const isOwn = this.lines.rank(group) === rank && place.movable.includes(group);
      if (group + WINDOW >= line && !isOwn && this.key(group) > place.fixed) {
        return group;
      }
    }
    return undefined;
  }

  /** Move what this rank alone wrote in front of the group it joins; return false if no keys are left there. */
  private moveInFrontOf(group: number, place: Place): boolean {
    const key = this.key(group);
    const moving = place.movable.filter(own => own > key);
    if (moving.length) {
      const step = Number.isInteger(key) ? STEP : FINE_STEP;
      const room = Number.isInteger(key / STEP) ? (step === STEP ? 1 : STEP) : 0;
      const before = this.movedInFrontOf.get(key) ?? 0;
      if ((before + moving.length + 1) * step >= room) {
        return false;
      }
      this.movedInFrontOf.set(key, before + moving.length);
      moving.forEach((own, i) => this.move(own, key - room + (before + i + 1) * step));
    }
    return true;
  }

  private move(group: number, key: number): void {
    const common = this.common(this.lines.text(group), group, this.lines.rank(group));
    const same = this.groups[this.lines.flags(group) & STDERR].get(common);
    this.keys.set(group, key);
    // Groups only move towards the start, and the others are in order.
    let at = same?.lastIndexOf(group) ?? 0;
    for (; same && at > 0 && this.key(same[at - 1]) > key; at--) {
      same[at] = same[at - 1];
      same[at - 1] = group;
    }
    this.moved.push(group);
    this.changed(key);
  }

  private join(group: number, line: number, place: Place): void {
    const key = this.key(group);
    place.movable = [];
    place.fixed = key;
    this.enter(group, line);
    // The group now belongs to two ranks, so it can no longer move.
    const other = this.placeOf(this.lines.rank(group));
    other.settle(other.movable.filter(own => own <= group).length);
  }

  /** Add the line to the group. */
  private enter(group: number, line: number): void {
    this.link(group, line);
    const key = this.key(group);
    let kind = this.kind(group);
    if (this.byNumbers && kind === SAME && this.lines.text(group) !== this.lines.text(line)) {
      kind = DIFFERS;
      this.kinds.set(group, kind);
    }
    for (const changes of this.watchers) {
      changes.members = Math.min(changes.members, key);
      if (kind !== SAME) {
        // Its row may need more height.
        changes.order = Math.min(changes.order, key);
      }
    }
  }

  private begin(line: number, place: Place, kind: number): void {
    this.found(line, kind);
    this.order.push(line);
    this.changed(line);
    place.movable.push(line);
    if (place.movable.length > MOVABLE) {
      place.settle(1);
    }
  }

  /** Put the moved groups in their new positions. */
  private merge(): void {
    const moved = new Set(this.moved);
    this.moved = [];
    const start = this.position(this.dirty);
    const stay = this.order.tail(start).filter(group => !moved.has(group));
    const go = [...moved].sort((a, b) => this.key(a) - this.key(b));
    this.order.cut(start);
    let next = 0;
    for (const group of stay) {
      while (next < go.length && this.key(go[next]) < this.key(group)) {
        this.order.push(go[next++]);
      }
      this.order.push(group);
    }
    go.slice(next).forEach(group => this.order.push(group));
  }

  /** Forget the groups before `oldest`: they can no longer be joined. */
  private sweep(oldest: number): void {
    for (const stream of this.groups) {
      for (const [text, same] of stream) {
        const open = same.filter(group => group >= oldest);
        if (open.length === 0) {
          stream.delete(text);
        } else if (open.length < same.length) {
          stream.set(text, open);
        }
      }
    }
    for (const key of this.movedInFrontOf.keys()) {
      if (key < oldest) {
        this.movedInFrontOf.delete(key);
      }
    }
  }
}
