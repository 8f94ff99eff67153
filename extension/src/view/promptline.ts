/** The prompts of ranks, under the log, with a line to answer them. */
import { Widget } from '@lumino/widgets';

import { nameRanks, rankClass } from '../ranks';
import type { RunModel } from '../run/model';
import { askingWords, type Prompts } from '../run/prompts';
import type { Prompt } from '../schema';
import { trans } from '../translation';
import { h, setChildren, setText } from './dom';

/** Maximum number of ranks that are listed one by one. */
const SINGLY = 64;
/** Maximum number of completions that are shown. */
const POSSIBILITIES = 40;
const ALL = 'all';

export class PromptLine extends Widget {
  private words = h('div', 'rr-prompt-words', { role: 'status' });
  private who = h('select', 'rr-prompt-who', {
    'aria-label': trans.__('ranks to answer'),
    onchange: () => this.prompts.choose(this.who.value === ALL ? null : Number(this.who.value), this.input.value)
  });
  private mark = h('span', 'rr-prompt-mark');
  private input = h('input', 'rr-prompt-input', {
    spellcheck: 'false',
    autocomplete: 'off',
    autocapitalize: 'off',
    oninput: () => {
      this.typed();
      this.offer([]);
    },
    onkeydown: (event: KeyboardEvent) => this.onKey(event)
  });
  private commands = h('span', 'rr-prompt-commands', { role: 'group', 'aria-label': trans.__('commands') });
  private line = h('div', 'rr-prompt-line');
  private possible = h('div', 'rr-prompt-possible', { role: 'status', 'aria-label': trans.__('completions'), hidden: true });
  private trouble = h('div', 'rr-prompt-trouble', { role: 'alert' });
  private shownChoices = '';

  constructor(
    model: RunModel,
    private prompts: Prompts,
    /** Called when the line with the focus is removed. */
    private refocus: () => void
  ) {
    super();
    this.addClass('rr-prompt');
    this.node.title = trans.__('also in a terminal: %1', `rankroom runs debug ${model.id}`);
    this.commands.append(
      this.command('n', trans.__('Next'), trans.__('run this line')),
      this.command('s', trans.__('Step'), trans.__('step into the functions that this line calls')),
      this.command('c', trans.__('Continue'), trans.__('continue to the next breakpoint')),
      this.command('w', trans.__('Where'), trans.__('show which calls led here'))
    );
    this.line.append(this.who, this.mark, this.input, this.commands);
  }

  refresh(): void {
    const { prompts } = this;
    if (!prompts.isOpen && this.node.contains(document.activeElement)) {
      this.refocus();
    }
    this.setHidden(!prompts.isOpen);
    // Without a prompt, remove the nodes instead of hiding them.
    setChildren(this.node, prompts.isOpen ? [this.words, this.line, this.possible, this.trouble] : []);
    if (!prompts.isOpen) {
      return;
    }
    const { asked, targets, choice } = prompts;
    const words = asked.length ? askingWords(asked) : trans.__('running …');
    const isAway = choice !== null && prompts.isAway;
    setText(this.words, isAway ? trans.__('%1; %2 is running: choose which ranks to answer', words, nameRanks([choice])) : words);
    this.refreshChoices(asked);
    const [first] = targets;
    const isRunning = first === undefined;
    this.node.classList.toggle('rr-prompt-waits', isRunning);
    if (!isRunning) {
      const ranks = targets.map(({ rank }) => rank);
      this.mark.className = `rr-prompt-mark ${ranks.length === 1 ? rankClass(ranks[0]) : 'rr-rank-many'}`;
      setText(this.mark, `${nameRanks(ranks)} ${first.text.trim().slice(-60)}`);
      const type = first.kind === 'password' ? 'password' : 'text';
      if (this.input.type === 'password' && type === 'text') {
        this.input.value = ''; // the password was not meant for this prompt, and would become visible
      }
      this.input.type = type;
      this.input.setAttribute('aria-label', trans.__('answer %1: %2', nameRanks(ranks), first.text.trim()));
      this.commands.hidden = first.kind !== 'debugger';
    }
    const { missed } = prompts;
    if (missed) {
      this.commands.hidden = true;
    }
    const trouble = missed ? missedWords(missed) : prompts.trouble;
    this.trouble.hidden = trouble === '';
    setText(this.trouble, trouble);
  }

  private refreshChoices(asked: readonly Prompt[]): void {
    const { choice } = this.prompts;
    const ranks = asked.map(({ rank }) => rank);
    if (choice !== null && !ranks.includes(choice)) {
      ranks.push(choice);
      ranks.sort((a, b) => a - b);
    }
    const key = ranks.join();
    // While no rank asks, the choice stays as it is.
    if (ranks.length && key !== this.shownChoices) {
      this.shownChoices = key;
      this.who.replaceChildren(
        h('option', '', { value: ALL }, trans.__('all waiting')),
        ...ranks.slice(0, SINGLY).map(rank => h('option', '', { value: String(rank) }, nameRanks([rank])))
      );
      this.who.hidden = ranks.length < 2 && choice === null;
    }
    this.who.value = choice === null ? ALL : String(choice);
  }

  /** Tie the typed text to the current prompt, even if others appear before Enter; an empty line goes to the first. */
  private typed(): void {
    this.prompts.typing(this.input.value);
    this.refresh();
  }

  private command(text: string, label: string, title: string): HTMLElement {
    return h('button', 'rr-button', { title: `${text}: ${title}`, onclick: () => void this.prompts.answer(text) }, label);
  }

  /** Complete the line as far as it is unambiguous, and show what can follow. */
  private async complete(): Promise<void> {
    const { input } = this;
    const { value } = input;
    const at = input.selectionStart ?? value.length;
    const { line, matches } = await this.prompts.complete(value.slice(0, at));
    // Unless the text has changed in the meantime.
    if (input.value === value && matches.length) {
      input.value = line + value.slice(at);
      input.setSelectionRange(line.length, line.length);
    }
    this.offer(input.value.startsWith(line) && matches.length > 1 ? matches : []);
  }

  private offer(matches: readonly string[]): void {
    const more = matches.length - POSSIBILITIES;
    const shown = matches.slice(0, POSSIBILITIES).join('  ');
    this.possible.hidden = matches.length === 0;
    setText(this.possible, more > 0 ? trans.__('%1  and %2 more', shown, more) : shown);
  }

  private onKey(event: KeyboardEvent): void {
    if (event.isComposing || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    if (event.key === 'Enter') {
      event.preventDefault();
      if (this.prompts.targets.length) {
        const { value } = this.input;
        this.input.value = '';
        this.offer([]);
        void this.prompts.answer(value);
      }
    } else if (event.key === 'Tab' && !event.shiftKey && this.input.value.trim() && this.prompts.targets[0]?.kind === 'debugger') {
      event.preventDefault();
      void this.complete();
    } else if ((event.key === 'ArrowUp' || event.key === 'ArrowDown') && this.input.type !== 'password') {
      event.preventDefault();
      this.input.value = this.prompts.recall(event.key === 'ArrowUp' ? -1 : 1, this.input.value);
      this.typed();
      this.input.setSelectionRange(this.input.value.length, this.input.value.length);
    }
  }
}

function missedWords({ rank }: Prompt): string {
  return trans.__(
    '%1 no longer asks for this, so it will not be sent: clear the line to answer the current prompt',
    nameRanks([rank])
  );
}
