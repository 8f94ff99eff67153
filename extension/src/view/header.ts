/** The lines above the log: the run's state, and the filters for what is shown of it. */
import { Widget } from '@lumino/widgets';

import { textFilter } from '../log/textfilter';
import type { TypedFilter } from '../log/typedfilter';
import type { RunModel } from '../run/model';
import { trans } from '../translation';
import { errorWords, grouped, how, SIGNS, slowest, who } from '../words';
import { h, handOn, setText } from './dom';
import { RankPicker } from './rankpicker';
import { setUnderWay, stepButton } from './step';

export interface HeaderActions {
  /** The filter has changed. */
  filter(): void;
  toError(): void;
  interrupt(): void;
  isInterrupting(): boolean;
  /** Give the focus to the log. */
  toLog(): void;
  /** The button at the right; null for none. */
  open: { label: string; run: () => void } | null;
  /** The list of tabs, which is shown beside the state. */
  tabs: HTMLElement;
  /** Return milliseconds since the epoch, by the clock of the run's times. */
  now(): number;
  downloadUrl(ranks: readonly number[] | null): string;
}

/** With at most this many lines and bytes of a record, everything is visible at once, so filters are hidden. */
const FEW = 3;
const LITTLE = 64 << 10;

export class Header extends Widget {
  private sign = h('span', 'rr-sign', { 'aria-hidden': 'true' });
  private words = h('span', 'rr-words');
  /** State for screen readers: read out at each change, so it leaves out the seconds of a live run. */
  private said = h('span', 'rr-hidden', { role: 'status' });
  private ranks: RankPicker;
  private find = h('input', 'rr-find', {
    type: 'search',
    placeholder: trans.__('filter'),
    'aria-label': trans.__('show only lines with this text; /…/ for a regular expression'),
    title: trans.__('show only lines with this text; /…/ for a regular expression'),
    oninput: () => this.onFind()
  });
  private same = h('input', '', {
    type: 'checkbox',
    onchange: () => this.change({ collapsed: this.same.checked })
  });
  private sameLabel = h(
    'label',
    'rr-same',
    { title: trans.__('show identical lines of several ranks only once') },
    this.same,
    trans.__('collapse identical')
  );
  private numbers = h('input', '', {
    type: 'checkbox',
    onchange: () => this.change({ byNumbers: this.numbers.checked })
  });
  private numbersLabel = h(
    'label',
    'rr-same',
    { title: trans.__('show lines that differ only in numbers once, with the number of each rank') },
    this.numbers,
    trans.__('but for numbers')
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
    trans.__('interrupt the cell on all its ranks; their variables are kept'),
    () => this.actions.interrupt()
  );
  private complaint = h('div', 'rr-complaint', { role: 'alert', hidden: true });

  constructor(
    private model: RunModel,
    private filter: TypedFilter,
    private actions: HeaderActions
  ) {
    super();
    this.addClass('rr-header');
    this.ranks = new RankPicker(model, filter.ranks, {
      change: ranks => this.change({ ranks: ranks && [...ranks] }),
      complain: sentence => this.complain(sentence)
    });
    const { open: act } = actions;
    const open = act
      ? h('button', 'rr-button', { title: act.label, 'aria-label': act.label, onclick: act.run }, '⤢')
      : null;
    this.node.append(
      h('div', 'rr-state', {}, this.sign, this.words, this.said, this.stop, actions.tabs, open),
      h('div', 'rr-tools', {}, this.ranks.node, this.find, this.sameLabel, this.numbersLabel, this.error, this.log),
      this.complaint
    );
    this.find.value = filter.text;
    this.same.checked = filter.collapsed;
    this.numbers.checked = filter.byNumbers;
  }

  /** Show the current state of the run. */
  refresh(): void {
    const { model } = this;
    const { run } = model;
    this.sign.textContent = SIGNS[run.state] ?? '?';
    this.sign.className = `rr-sign rr-is-${run.state}`;
    // While a finished run's record is being read, show its total: the count so far would be read out with each piece.
    const lines = model.isComplete || (model.isLive && model.read > 0) ? model.lineCount : (run.lines ?? 0);
    // Without its record, it is unknown whether the run is still running.
    const isFollowed = model.isLive && model.refusal === '';
    const words = [
      who(run),
      model.isLive && !isFollowed ? trans.__('was running when this output was saved') : how(run, this.actions.now() * 1000)
    ];
    if (model.isComplete && model.profile.value) {
      words.push(slowest(model.profile.value));
    }
    if (run.failure) {
      const line = run.failure.cell_line;
      const where = line ? ` ${trans.__('(cell line %1)', line)}` : '';
      words.push(`${errorWords(run.failure, 200)}${where}`);
    }
    if (lines || model.isComplete) {
      words.push(lines ? trans._n('%2 line', '%2 lines', lines, grouped(lines)) : trans.__('no output'));
    }
    if (run.name) {
      words.push(run.name);
    }
    const text = words.filter(Boolean).join(' · ');
    setText(this.words, text);
    setText(this.said, isFollowed ? trans.__('running') : text);
    if (!isFollowed) {
      handOn(this.stop, () => this.actions.toLog());
    }
    this.stop.hidden = !isFollowed;
    setUnderWay(this.stop, this.actions.isInterrupting());
    this.error.hidden = model.errors.length === 0;
    // Hide controls that the run has no use for, but not those in use.
    const isIdle = this.filter.text === '' && this.filter.collapsed && this.complaint.hidden;
    const isLittle = lines <= FEW && model.read <= LITTLE && isIdle;
    this.find.hidden = isLittle;
    this.sameLabel.hidden = model.ranks.length < 2 || isLittle;
    this.numbersLabel.hidden = this.sameLabel.hidden || !this.filter.collapsed;
    this.log.hidden = lines === 0;
    this.ranks.refresh();
    this.log.href = this.actions.downloadUrl(this.filter.ranks);
  }

  /** Show the lines of all ranks, with any text. */
  showAll(): void {
    this.find.value = '';
    this.complain('');
    this.change({ text: '' });
    this.ranks.showAll();
  }

  private onFind(): void {
    const { value } = this.find;
    const text = textFilter(value);
    this.complain(typeof text === 'string' ? text : '');
    if (typeof text !== 'string') {
      this.change({ text: value });
    }
  }

  private complain(sentence: string): void {
    this.complaint.hidden = sentence === '';
    this.complaint.textContent = sentence;
  }

  private change(part: Partial<TypedFilter>): void {
    Object.assign(this.filter, part);
    this.actions.filter();
    this.refresh();
  }
}
