/** What a teacher says to all: a message, a cell, a timer, a run to look at. */
import { trans } from '../translation';
import { h, setChildren, setText } from '../view/dom';
import { setUnderWay, stepButton } from '../view/step';
import type { Run } from '../schema';
import { message } from '../sidebar/clusters';
import { SIGNS } from '../words';
import type { Message } from '../workshop_answers';
import type { Console } from './console';
import { clock } from './words';

export interface TellParts {
  /** The source of the active cell in the notebook last used; null if there is none. */
  activeCell(): string | null;
  /** The newest runs. */
  runs(): Promise<Run[]>;
}

const LINES = 3;

export class Tell {
  readonly node: HTMLElement;
  private text = h('textarea', 'rr-input', { rows: String(LINES), 'aria-label': trans.__('message'), placeholder: trans.__('to all learners') });
  private cellTitle = h('input', 'rr-input', { 'aria-label': trans.__('what the cell does'), placeholder: trans.__('what it does') });
  private source = h('textarea', 'rr-input rr-ws-source', { rows: String(LINES), spellcheck: 'false', 'aria-label': trans.__('cell') });
  private minutes = h('input', 'rr-input rr-ws-minutes', { type: 'number', min: '1', max: '600', value: '10', 'aria-label': trans.__('minutes') });
  private timerTitle = h('input', 'rr-input', { 'aria-label': trans.__('what the time is for'), placeholder: trans.__('what for') });
  private runs = h('select', 'rr-input', { 'aria-label': trans.__('run') });
  private said = h('div', 'rr-ws-said', { role: 'status' });
  private told = h('div', 'rr-ws-told', { role: 'log', 'aria-label': trans.__('told so far') });
  private lines = new Map<string, HTMLElement>();

  constructor(
    private model: Console,
    private parts: TellParts
  ) {
    const take = stepButton(
      trans.__('Take the active cell'), trans.__('of the notebook that you used last'), () => this.takeCell()
    );
    this.node = h(
      'div', 'rr-ws-tell', {},
      section(trans.__('Message'), true, this.text, h('div', 'rr-actions', {}, this.button(trans.__('Send'), () => this.send()))),
      section(
        trans.__('Cell'), false, this.cellTitle, this.source,
        h('div', 'rr-actions', {}, take, this.button(trans.__('Offer the cell'), () => this.offerCell())),
        h('p', 'rr-hint', {}, trans.__('Each learner may insert it into their notebook. It is not run.'))
      ),
      section(
        trans.__('Timer'), false,
        h('div', 'rr-ws-row', {}, this.minutes, h('span', '', {}, trans.__('minutes')), this.timerTitle),
        h(
          'div', 'rr-actions', {}, this.button(trans.__('Start timer'), () => this.startTimer()),
          this.button(trans.__('Clear timer'), () => this.setTimer(''))
        )
      ),
      section(
        trans.__('Run'), false, this.runs,
        h(
          'div', 'rr-actions', {}, this.button(trans.__('Show the run'), () => this.showRun()),
          this.button(trans.__('Hide the run'), () => this.model.showRun(''))
        ),
        h('p', 'rr-hint', {}, trans.__('Learners can open your view of it, with log, timeline and profile, also while it runs.')),
        () => void this.listRuns()
      ),
      section(trans.__('Sent so far'), false, this.told),
      this.said
    );
  }

  /** Show what learners have been told, newest first. */
  refresh(messages: readonly Message[]): void {
    const nodes = messages.map(each => this.lines.get(each.id) ?? lineOf(each));
    this.lines = new Map(messages.map(({ id }, i) => [id, nodes[i]]));
    setChildren(this.told, nodes);
  }

  /** Show the result of an action. */
  report(sentence: string, isWrong = false): void {
    setText(this.said, sentence);
    this.said.classList.toggle('rr-said-wrong', isWrong);
  }

  private button(label: string, act: () => Promise<string>): HTMLButtonElement {
    const button = stepButton(label, '', async () => {
      setUnderWay(button, true);
      try {
        this.report(await act());
      } catch (error) {
        this.report(message(error), true);
      } finally {
        setUnderWay(button, false);
      }
    });
    button.removeAttribute('title');
    return button;
  }

  private async send(): Promise<string> {
    const said = await this.model.say(this.text.value);
    this.text.value = '';
    return said;
  }

  private takeCell(): void {
    const source = this.parts.activeCell();
    if (source === null) {
      this.report(trans.__('Open a notebook first: this button copies its active cell.'), true);
      return;
    }
    this.source.value = source;
    this.report('');
  }

  private offerCell(): Promise<string> {
    return this.model.offerCell(this.source.value, this.cellTitle.value);
  }

  private async startTimer(): Promise<string> {
    // The browser returns '' for what is not a number, which would clear the timer.
    if (!this.minutes.value || !this.minutes.checkValidity()) {
      throw new Error(trans.__('Enter a number of minutes from %1 to %2.', this.minutes.min, this.minutes.max));
    }
    return this.setTimer(this.minutes.value);
  }

  private setTimer(minutes: string): Promise<string> {
    return this.model.setTimer(minutes, this.timerTitle.value);
  }

  private async showRun(): Promise<string> {
    const { value: run } = this.runs;
    return run ? this.model.showRun(run) : trans.__('There is no run yet.');
  }

  private async listRuns(): Promise<void> {
    try {
      const runs = await this.parts.runs();
      this.runs.replaceChildren(...runs.map(run => h('option', '', { value: run.id }, `${SIGNS[run.state] ?? '?'} ${run.name || run.title || run.id}`)));
      this.report(runs.length ? '' : trans.__('There is no run yet.'));
    } catch (error) {
      this.report(message(error), true);
    }
  }
}

/** `09:30 the first words of it`. */
function lineOf({ at, kind, text, source }: Message): HTMLElement {
  const words = kind === 'cell' ? text || (source ?? '') : text;
  const what = { text: words, cell: trans.__('cell: %1', words), run: trans.__('run: %1', words) }[kind];
  return h('div', 'rr-ws-line', { title: words }, h('time', 'rr-hint', {}, clock(at)), ` ${what}`);
}

function section(title: string, isOpen: boolean, ...content: Array<HTMLElement | (() => void)>): HTMLElement {
  const opened = content.find((each): each is () => void => typeof each === 'function');
  const nodes = content.filter((each): each is HTMLElement => typeof each !== 'function');
  const node: HTMLDetailsElement = h(
    'details', 'rr-ws-section', { open: isOpen, name: 'rr-ws-tell', ontoggle: () => void (node.open && opened?.()) },
    h('summary', '', {}, title), ...nodes
  );
  return node;
}
