/** A strip with a cell for each of many ranks: its state, how long it waited, and whether it is chosen to be shown. */
import type { Profile, RankState } from '../schema';
import { percent } from '../timeline/amounts';
import { trans } from '../translation';
import { stateWord } from '../words';
import { h, setChildren, setText } from './dom';

/** With more ranks than this, cells are narrower. */
const WIDE = 128;

export interface RankCell {
  rank: number;
  state: RankState;
  /** The share of the run's time that the rank waited for others, 0 to 1; null while it is unknown. */
  waiting: number | null;
}

/** Return what a strip shows of each rank. */
export function rankCells(ranks: readonly number[], stateOf: (rank: number) => RankState, profile: Profile | null): RankCell[] {
  const waits = new Map(profile?.wall ? profile.ranks.map(({ rank, waiting }) => [rank, waiting / profile.wall]) : []);
  return ranks.map(rank => ({ rank, state: stateOf(rank), waiting: waits.get(rank) ?? null }));
}

/** `rank 12: ok, waited for others for 34 % of the run`. */
export function cellWords({ rank, state, waiting }: RankCell): string {
  const stands = trans.__('rank %1: %2', rank, stateWord(state));
  return waiting === null ? stands : trans.__('%1, waited for others for %2 of the run', stands, percent(waiting, 1));
}

/** Return the place, of `count`, to which a key moves from `at`; null if the key does not move. */
export function keyPlace(key: string, at: number, count: number): number | null {
  const places: { [key: string]: number } = {
    ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: count - 1
  };
  return key in places ? Math.min(Math.max(places[key], 0), count - 1) : null;
}

/** Return the chosen ranks with all those between two places added. */
export function withRange(cells: readonly RankCell[], chosen: ReadonlySet<number>, from: number, to: number): Set<number> {
  const between = cells.slice(Math.min(from, to), Math.max(from, to) + 1);
  return new Set([...chosen, ...between.map(({ rank }) => rank)]);
}

let strips = 0;

export class RankStrip {
  readonly node: HTMLElement;
  private cells: RankCell[] = [];
  private chosen: ReadonlySet<number> = new Set();
  private nodes = new Map<number, HTMLElement>();
  /** The place of the cell that keys act on. */
  private at = 0;
  private id = `rr-strip-${++strips}`;
  private said = h('span', 'rr-strip-said', { 'aria-hidden': 'true' });
  private list = h('div', 'rr-strip', {
    role: 'listbox', tabindex: '0', 'aria-multiselectable': 'true', 'data-rr-keys': 'Escape',
    'aria-label': trans.__('ranks to show: arrows move, Space chooses, with Shift arrows choose several, Escape shows all'),
    onkeydown: (event: KeyboardEvent) => this.onKey(event),
    onclick: (event: MouseEvent) => this.onClick(event),
    onmousemove: (event: MouseEvent) => this.onMove(event),
    onmouseleave: () => this.rest(),
    onfocus: () => this.move(this.at),
    onblur: () => this.rest()
  });

  /** `change` is called with the chosen ranks; an empty set means all. */
  constructor(private change: (chosen: ReadonlySet<number>) => void) {
    this.node = h('span', 'rr-strip-box', {}, this.list, this.said);
  }

  refresh(cells: RankCell[]): void {
    this.cells = cells;
    this.list.classList.toggle('rr-strip-narrow', cells.length > WIDE);
    setChildren(this.list, cells.map(cell => this.cell(cell)));
    this.choose(this.chosen);
    this.rest();
  }

  /** Show which ranks are chosen. */
  choose(chosen: ReadonlySet<number>): void {
    this.chosen = chosen;
    this.list.classList.toggle('rr-strip-some', chosen.size > 0);
    this.nodes.forEach((node, rank) => node.setAttribute('aria-selected', String(chosen.has(rank))));
  }

  private cell(cell: RankCell): HTMLElement {
    const { rank, state, waiting } = cell;
    const node = this.nodes.get(rank) ?? h('span', '', { role: 'option', id: `${this.id}-${rank}`, 'data-rank': String(rank) });
    this.nodes.set(rank, node);
    const words = cellWords(cell);
    const name = `rr-cell rr-was-${state}`;
    if (node.title !== words) {
      node.className = node.classList.contains('rr-cell-active') ? `${name} rr-cell-active` : name;
      node.title = words;
      node.setAttribute('aria-label', words);
      node.style.setProperty('--rr-heat', String(waiting ?? 0));
    }
    return node;
  }

  private onClick(event: MouseEvent): void {
    const at = this.placeOf(event);
    if (at >= 0) {
      const from = this.at;
      this.move(at);
      this.change(event.shiftKey ? withRange(this.cells, this.chosen, from, at) : this.toggled(at));
    }
  }

  private onMove(event: MouseEvent): void {
    // A browser also reports a pointer that did not move, if the page has moved below it.
    if (event.movementX || event.movementY) {
      this.say(this.placeOf(event));
    }
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const to = keyPlace(event.key, this.at, this.cells.length);
    if (to !== null) {
      const from = this.at;
      this.move(to);
      if (event.shiftKey) {
        this.change(withRange(this.cells, this.chosen, from, to));
      }
    } else if (event.key === ' ' || event.key === 'Enter') {
      this.change(this.toggled(this.at));
    } else if (event.key === 'Escape') {
      this.change(new Set());
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private toggled(at: number): ReadonlySet<number> {
    const { rank } = this.cells[at];
    const chosen = new Set(this.chosen);
    return chosen.delete(rank) ? chosen : chosen.add(rank);
  }

  private move(at: number): void {
    this.nodes.get(this.cells[this.at]?.rank)?.classList.remove('rr-cell-active');
    this.at = at;
    const node = this.nodes.get(this.cells[at]?.rank);
    node?.classList.add('rr-cell-active');
    this.list.setAttribute('aria-activedescendant', node?.id ?? '');
    this.say(at);
  }

  /** When no cell is pointed at, describe the one that keys act on, if the strip has the focus. */
  private rest(): void {
    this.say(this.list.matches(':focus') ? this.at : -1);
  }

  /** Describe a cell in words; for -1, explain the color. */
  private say(at: number): void {
    const hasWaits = this.cells.some(({ waiting }) => waiting !== null);
    const legend = hasWaits ? trans.__('the more orange, the longer a rank waited for others') : '';
    setText(this.said, at in this.cells ? cellWords(this.cells[at]) : legend);
  }

  private placeOf(event: MouseEvent): number {
    const node = (event.target as Element).closest<HTMLElement>('[data-rank]');
    return node ? this.cells.findIndex(({ rank }) => rank === Number(node.dataset.rank)) : -1;
  }
}
