/** The lines above the log: how the run stands, and what of it is to be seen. */
import { Widget } from '@lumino/widgets';

import type { Filter } from '../log/rows';
import { formatRanks, parseRanks, rankClass } from '../ranks';
import type { RunModel } from '../run/model';
import type { RankState } from '../schema';
import { trans } from '../translation';
import { grouped, how, SIGNS, slowest, who } from '../words';
import { h, setText } from './dom';
import { setUnderWay, stepButton } from './step';
import { textFilter } from './textfilter';

/** More ranks than these are typed as ranges. */
const CHIPS = 16;

export interface HeaderActions {
  filter(filter: Filter): void;
  toError(): void;
  interrupt(): void;
  isInterrupting(): boolean;
  /** What the button at the right does, if there is one. */
  open: { label: string; run: () => void } | null;
  /** The list of tabs, beside the words. */
  tabs: HTMLElement;
  downloadUrl(ranks: readonly number[] | null): string;
}

export class Header extends Widget {
  private filter: Filter = { ranks: null, text: null, collapsed: true };
  private shownRanks = '';

  private sign = h('span', 'rr-sign', { 'aria-hidden': 'true' });
  private words = h('span', 'rr-words', { role: 'status' });
  private ranks = h('span', 'rr-chips', { role: 'group', 'aria-label': trans.__('ranks to show') });
  private find = h('input', 'rr-find', {
    type: 'search',
    placeholder: trans.__('filter'),
    'aria-label': trans.__('show only lines with this text; /…/ for a regular expression'),
    title: trans.__('show only lines with this text; /…/ for a regular expression'),
    oninput: () => this.onFind()
  });
  private same = h('input', '', {
    type: 'checkbox',
    checked: true,
    onchange: () => this.change({ collapsed: this.same.checked })
  });
  private sameLabel = h(
    'label',
    'rr-same',
    { title: trans.__('show lines that several ranks wrote alike once') },
    this.same,
    trans.__('collapse identical')
  );
  private error = h('button', 'rr-button', { hidden: true, onclick: () => this.actions.toError() }, trans.__('✗ first error'));
  private log = h(
    'a',
    'rr-button',
    { download: '', title: trans.__('download every line of the ranks shown') },
    trans.__('⤓ whole log')
  );
  private stop = stepButton(
    trans.__('■ Interrupt'),
    trans.__('end the cell on all its ranks; their variables are kept'),
    () => this.actions.interrupt()
  );
  private complaint = h('div', 'rr-complaint', { role: 'alert', hidden: true });

  constructor(
    private model: RunModel,
    private actions: HeaderActions
  ) {
    super();
    this.addClass('rr-header');
    const { open: act } = actions;
    const open = act
      ? h('button', 'rr-button', { title: act.label, 'aria-label': act.label, onclick: act.run }, '⤢')
      : null;
    this.node.append(
      h('div', 'rr-state', {}, this.sign, this.words, this.stop, actions.tabs, open),
      h('div', 'rr-tools', {}, this.ranks, this.find, this.sameLabel, this.error, this.log),
      this.complaint
    );
  }

  /** Show how the run stands now. */
  refresh(): void {
    const { model } = this;
    const { run } = model;
    this.sign.textContent = SIGNS[run.state] ?? '?';
    this.sign.className = `rr-sign rr-is-${run.state}`;
    const lines = model.read > 0 || model.isComplete ? model.lineCount : (run.lines ?? 0);
    const words = [who(run), how(run, Date.now() * 1000)];
    if (model.isComplete && model.profile.value) {
      words.push(slowest(model.profile.value));
    }
    if (run.failure) {
      const line = run.failure.cell_line;
      const where = line ? ` ${trans.__('(cell line %1)', line)}` : '';
      words.push(`${run.failure.ename}: ${run.failure.evalue.split('\n', 1)[0].slice(0, 200)}${where}`);
    }
    if (lines || model.isComplete) {
      words.push(lines ? trans._n('%2 line', '%2 lines', lines, grouped(lines)) : trans.__('no output'));
    }
    if (run.name) {
      words.push(run.name);
    }
    setText(this.words, words.filter(Boolean).join(' · '));
    this.stop.hidden = !model.isLive;
    setUnderWay(this.stop, this.actions.isInterrupting());
    this.error.hidden = model.errors.length === 0;
    this.sameLabel.hidden = model.ranks.length < 2;
    this.refreshRanks();
    this.log.href = this.actions.downloadUrl(this.filter.ranks ? [...this.filter.ranks] : null);
  }

  private refreshRanks(): void {
    const { ranks } = this.model;
    const key = ranks.map(rank => `${rank}${this.model.stateOf(rank)}`).join();
    if (key === this.shownRanks) {
      return;
    }
    this.shownRanks = key;
    this.ranks.hidden = ranks.length < 2;
    if (ranks.length > CHIPS) {
      if (!this.ranks.firstChild) {
        this.ranks.append(this.rangesInput());
      }
      return;
    }
    this.ranks.replaceChildren(
      this.chip(trans.__('all'), null),
      ...ranks.map(rank => this.chip(String(rank), rank))
    );
    this.press();
  }

  private chip(text: string, rank: number | null): HTMLElement {
    const state = rank === null ? '' : this.model.stateOf(rank);
    return h(
      'button',
      `rr-chip ${rank === null ? '' : rankClass(rank)} ${state ? `rr-was-${state}` : ''}`,
      {
        'aria-pressed': 'false',
        'data-rank': String(rank ?? 'all'),
        title: state ? trans.__('show rank %1 (%2)', rank, stateWord(state)) : trans.__('show all ranks'),
        onclick: () => this.onChip(rank)
      },
      text
    );
  }

  private rangesInput(): HTMLElement {
    const input = h('input', 'rr-ranges', {
      type: 'search',
      placeholder: trans.__('all (%1)', formatRanks(this.model.ranks)),
      'aria-label': trans.__('ranks to show, like 0,2-3'),
      title: trans.__('ranks to show, like 0,2-3'),
      oninput: () => {
        const chosen = input.value.trim() ? parseRanks(input.value, this.model.ranks) : null;
        this.complain(typeof chosen === 'string' ? chosen : '');
        if (typeof chosen !== 'string') {
          this.change({ ranks: chosen });
        }
      }
    });
    return h('label', '', {}, `${trans.__('ranks')} `, input);
  }

  /** Rank by rank; choosing none shows all again. */
  private onChip(rank: number | null): void {
    const chosen = new Set(this.filter.ranks ?? []);
    if (rank === null) {
      chosen.clear();
    } else if (!chosen.delete(rank)) {
      chosen.add(rank);
    }
    this.change({ ranks: chosen.size ? chosen : null });
    this.press();
  }

  private press(): void {
    this.ranks.querySelectorAll<HTMLElement>('.rr-chip').forEach(chip => {
      const { ranks } = this.filter;
      const name = chip.dataset.rank ?? '';
      const isPressed = name === 'all' ? !ranks : (ranks?.has(Number(name)) ?? false);
      chip.setAttribute('aria-pressed', String(isPressed));
    });
  }

  private onFind(): void {
    const text = textFilter(this.find.value);
    this.complain(typeof text === 'string' ? text : '');
    if (typeof text !== 'string') {
      this.change({ text });
    }
  }

  private complain(sentence: string): void {
    this.complaint.hidden = sentence === '';
    this.complaint.textContent = sentence;
  }

  private change(part: Partial<Filter>): void {
    this.filter = { ...this.filter, ...part };
    this.actions.filter(this.filter);
    this.refresh();
  }
}

function stateWord(state: RankState): string {
  const words: { [state in RankState]: string } = {
    running: trans.__('running'),
    ok: trans.__('ok'),
    error: trans.__('error'),
    interrupted: trans.__('interrupted'),
    released: trans.__('released'),
    lost: trans.__('lost')
  };
  return words[state] ?? state;
}
