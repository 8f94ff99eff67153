/** Navigation from span to span by keys. */
import type { RunModel } from '../../run/model';
import { nearest, neighbour, sameName, type Search, type Spot } from '../../timeline/find';
import type { Look } from '../../timeline/look';

export interface SteerActions {
  /** The ranks that are shown. */
  ranks(): number[];
  search(): Search | null;
  /** Choose a span and bring it into view. */
  choose(spot: Spot): void;
  clear(): void;
  fit(): void;
  toLog(t: number, rank: number | null): void;
  /** Focus the search field. */
  find(): void;
}

export class Steer {
  constructor(
    private model: RunModel,
    private look: Look,
    private actions: SteerActions
  ) {}

  /** Handle a key; return whether it was handled. */
  key(key: string, isShift: boolean): boolean {
    const { actions } = this;
    const keys: { [key: string]: () => void } = {
      f: () => actions.fit(),
      l: () => actions.toLog(this.moment, this.look.chosen?.rank ?? null),
      '/': () => actions.find(),
      '.': () => this.same(1),
      ',': () => this.same(-1),
      arrowright: () => this.step(1),
      arrowleft: () => this.step(-1),
      arrowdown: () => this.changeLane(1),
      arrowup: () => this.changeLane(-1),
      enter: () => (actions.search() ? this.nextMatch(isShift ? -1 : 1) : actions.fit()),
      escape: () => actions.clear()
    };
    const act = keys[key.toLowerCase()];
    act?.();
    return act !== undefined;
  }

  nextMatch(step: 1 | -1): void {
    const { chosen, range } = this.look;
    this.go(this.actions.search()?.next(chosen, step > 0 ? range.from : range.to, step) ?? null);
  }

  chooseAt(rank: number, cat: string, t: number): void {
    this.go(nearest(this.model.spans, rank, cat, t));
  }

  private go(spot: Spot | null): void {
    if (spot) {
      this.actions.choose(spot);
    }
  }

  /** The moment that is current: of the chosen span, the selection, the highlight, or the left edge. */
  private get moment(): number {
    const { chosen, part, moment, range } = this.look;
    if (chosen) {
      return this.model.spans.columns(chosen.rank, chosen.cat).start[chosen.i];
    }
    return part?.from ?? moment ?? range.from;
  }

  private same(by: 1 | -1): void {
    const { chosen } = this.look;
    if (chosen) {
      this.go(sameName(this.model.spans, chosen, by));
    } else {
      this.step(by);
    }
  }

  private step(by: 1 | -1): void {
    const { chosen } = this.look;
    this.go(chosen ? neighbour(this.model.spans, chosen, by) : this.firstInSight());
  }

  private firstInSight(): Spot | null {
    const [rank] = this.actions.ranks();
    const [cat] = rank === undefined ? [] : this.model.spans.cats(rank);
    return cat ? nearest(this.model.spans, rank, cat, this.look.range.from) : null;
  }

  /** Choose the span at the same time in the lane above or below. */
  private changeLane(by: 1 | -1): void {
    const { spans } = this.model;
    const { chosen } = this.look;
    const lanes = this.actions.ranks().flatMap(rank => spans.cats(rank).map(cat => ({ rank, cat })));
    const at = lanes.findIndex(({ rank, cat }) => rank === chosen?.rank && cat === chosen.cat);
    const next = lanes[at + by];
    if (!chosen) {
      this.step(1);
    } else if (next) {
      this.chooseAt(next.rank, next.cat, this.moment);
    }
  }
}
