/** Selects the ranks to show: a chip for each of a few; for many, a field for ranges and a strip. */
import { formatRanks, parseRanks, rankClass } from '../ranks';
import type { RunModel } from '../run/model';
import { trans } from '../translation';
import { stateWord } from '../words';
import { h, setChildren } from './dom';
import { rankCells, RankStrip } from './rankstrip';

/** Maximum number of ranks with a chip each. */
const CHIPS = 16;

export interface RankPickerActions {
  /** The choice has changed; null means all ranks. */
  change(ranks: ReadonlySet<number> | null): void;
  /** Show what is wrong with the typed text; '' if nothing is. */
  complain(sentence: string): void;
}

export class RankPicker {
  readonly node = h('span', 'rr-chips', { role: 'group', 'aria-label': trans.__('ranks to show') });
  private chosen: ReadonlySet<number> | null;
  private shown = '';
  /** The chips by rank; null is the one for all ranks. */
  private chips = new Map<number | null, HTMLElement>();
  private field = h('input', 'rr-ranges', {
    type: 'search',
    'aria-label': trans.__('ranks to show, like 0,2-3'),
    title: trans.__('ranks to show, like 0,2-3'),
    oninput: () => this.onType()
  });
  private strip = new RankStrip(chosen => this.onStrip(chosen));

  constructor(
    private model: RunModel,
    chosen: readonly number[] | null,
    private actions: RankPickerActions
  ) {
    this.chosen = chosen && new Set(chosen);
    this.say();
  }

  refresh(): void {
    const { model } = this;
    const { ranks } = model;
    const isMany = ranks.length > CHIPS;
    const cells = rankCells(ranks, rank => model.stateOf(rank), isMany ? model.profile.value : null);
    const key = cells.map(({ rank, state, waiting }) => `${rank}${state}${waiting ?? ''}`).join();
    if (key === this.shown) {
      return;
    }
    this.shown = key;
    this.node.hidden = ranks.length < 2;
    this.node.classList.toggle('rr-chips-many', isMany);
    if (!isMany) {
      setChildren(this.node, [null, ...ranks].map(rank => this.chip(rank)));
      this.press();
      return;
    }
    if (this.field.parentElement?.parentElement !== this.node) {
      this.node.replaceChildren(h('label', '', {}, `${trans.__('ranks')} `, this.field), this.strip.node);
    }
    this.field.placeholder = trans.__('all (%1)', formatRanks(ranks));
    this.strip.refresh(cells);
  }

  /** Return the chip of a rank, reused when the rank's state changes, so that it keeps the focus. */
  private chip(rank: number | null): HTMLElement {
    const known = this.chips.get(rank);
    const chip = known ?? h(
      'button', '', { 'data-rank': String(rank ?? 'all'), onclick: () => this.onChip(rank) },
      rank === null ? trans.__('all') : String(rank)
    );
    this.chips.set(rank, chip);
    const state = rank === null ? '' : this.model.stateOf(rank);
    chip.className = `rr-chip ${rank === null ? '' : rankClass(rank)} ${state ? `rr-was-${state}` : ''}`;
    chip.title = state ? trans.__('show rank %1 (%2)', rank, stateWord(state)) : trans.__('show all ranks');
    return chip;
  }

  /** Toggle a rank; if none is left, all are shown. */
  private onChip(rank: number | null): void {
    const chosen = new Set(this.chosen ?? []);
    if (rank === null) {
      chosen.clear();
    } else if (!chosen.delete(rank)) {
      chosen.add(rank);
    }
    this.choose(chosen);
    this.press();
  }

  private onType(): void {
    const typed = this.field.value.trim() ? parseRanks(this.field.value, this.model.ranks) : new Set<number>();
    this.actions.complain(typeof typed === 'string' ? typed : '');
    if (typeof typed !== 'string') {
      this.choose(typed);
    }
  }

  /** Show all ranks. */
  showAll(): void {
    this.choose(new Set());
    this.say();
    this.press();
  }

  private onStrip(chosen: ReadonlySet<number>): void {
    this.actions.complain('');
    this.choose(chosen);
    this.say();
  }

  private say(): void {
    this.field.value = formatRanks([...(this.chosen ?? [])].sort((a, b) => a - b)).replace(/–/g, '-');
    this.strip.choose(this.chosen ?? new Set());
  }

  private choose(chosen: ReadonlySet<number>): void {
    this.chosen = chosen.size ? chosen : null;
    this.strip.choose(chosen);
    this.actions.change(this.chosen);
  }

  private press(): void {
    this.chips.forEach((chip, rank) => {
      const isPressed = rank === null ? !this.chosen : (this.chosen?.has(rank) ?? false);
      chip.setAttribute('aria-pressed', String(isPressed));
    });
  }
}
