/** The prompts of a live run's ranks, from debuggers and input(), and the user's answers. */
import type { Api } from '../api';
import { nameRanks } from '../ranks';
import type { Prompt } from '../schema';
import { trans } from '../translation';
import type { RunModel } from './model';

/** Milliseconds after an answer during which the input line stays, as a debugger soon prompts again. */
const GRACE = 1_500;
const MOST_HISTORY = 200;
const PLACE = /^cell line (\d+)$/;

/** What was typed in this page, newest last; shared by all runs, as a cell is often run again. */
const history: string[] = [];

export class Prompts {
  /** Why the last answer was not accepted; '' if it was. */
  trouble = '';

  private chosen: number | null = null;
  /** The prompts that were answered here, by rank. */
  private given = new Map<number, string>();
  /** The prompt for which the pending text was begun. */
  private begun: Prompt | undefined;
  private answered = -Infinity;
  /** How far back in the history, which other runs extend, the shown entry is; 0 is the pending text. */
  private back = 0;
  private typed = '';

  constructor(
    private model: RunModel,
    private api: Api,
    private now: () => number = Date.now
  ) {}

  /** The open prompts that were not answered here, in the order of ranks. */
  get asked(): Prompt[] {
    return this.model.prompts.filter(prompt => this.given.get(prompt.rank) !== keyOf(prompt));
  }

  /**
   * The prompts that the next answer is for: the chosen rank's, or all that are like the first. Pending text is only
   * for prompts like the one for which it was begun: it may be a password.
   */
  get targets(): Prompt[] {
    const { answerable, begun } = this;
    const first = begun ? answerable.find(prompt => isAlike(prompt, begun)) : answerable[0];
    return answerable.filter(prompt => isAlike(prompt, first));
  }

  /** The prompt for which the pending text was begun, if it is no longer open but others are. */
  get missed(): Prompt | undefined {
    return this.answerable.length > 0 && this.targets.length === 0 ? this.begun : undefined;
  }

  /** The only rank to answer, or null for all that prompt. */
  get choice(): number | null {
    return this.chosen;
  }

  /** Whether the chosen rank has run on without a prompt for a while, and others have one. */
  get isAway(): boolean {
    return this.asked.length > 0 && this.answerable.length === 0 && this.now() - this.answered >= GRACE;
  }

  /** Choose the rank to answer, null for all; `text` is what the input line holds. */
  choose(rank: number | null, text = ''): void {
    this.chosen = rank;
    this.begun = undefined;
    this.typing(text);
    this.model.notify();
  }

  /** Note what the input line holds; it does not answer other prompts that come up before Enter. */
  typing(text: string): void {
    this.begun = text ? (this.begun ?? this.targets[0]) : undefined;
  }

  /** Whether there is something to answer, or soon will be. */
  get isOpen(): boolean {
    return this.model.isLive && (this.asked.length > 0 || this.now() - this.answered < GRACE);
  }

  /** Answer the targets, which are no longer open then, unless the request fails. */
  async answer(text: string): Promise<void> {
    const { targets } = this;
    if (targets.length === 0) {
      return;
    }
    targets.forEach(prompt => this.given.set(prompt.rank, keyOf(prompt)));
    if (text.trim() && targets[0].kind !== 'password' && history[history.length - 1] !== text) {
      history.push(text);
      history.splice(0, history.length - MOST_HISTORY);
    }
    this.back = 0;
    this.typed = '';
    this.begun = undefined;
    this.answered = this.now();
    this.trouble = '';
    this.model.notify();
    try {
      await this.api.answer(this.model.id, text, targets);
    } catch (error) {
      this.trouble = error instanceof Error ? error.message : String(error);
      targets.forEach(({ rank }) => this.given.delete(rank));
      this.model.notify();
    }
  }

  /** The open prompts of the chosen rank, or of all. */
  private get answerable(): Prompt[] {
    const { asked, chosen } = this;
    return chosen === null ? asked : asked.filter(({ rank }) => rank === chosen);
  }

  /** Return a debugger line extended by what all its completions have in common, and the completions. */
  async complete(line: string): Promise<{ line: string; matches: string[] }> {
    const first = this.targets[0];
    if (first?.kind !== 'debugger') {
      return { line, matches: [] };
    }
    try {
      const { begin, matches } = await this.api.complete(this.model.id, line, first);
      return { line: matches.length ? line.slice(0, begin) + shared(matches) : line, matches };
    } catch {
      return { line, matches: [] };
    }
  }

  /** Return the history entry before (-1) or after (1) the current one; `shown` is what the input line holds. */
  recall(by: 1 | -1, shown: string): string {
    if (this.back === 0) {
      this.typed = shown;
    }
    this.back = Math.max(0, Math.min(history.length, this.back - by));
    return this.back ? history[history.length - this.back] : this.typed;
  }
}

/** Describe which ranks wait for an answer, and where: `rank 2 is in the debugger at cell line 5`. */
export function askingWords(prompts: readonly Prompt[]): string {
  const groups = new Map<string, Prompt[]>();
  for (const prompt of prompts) {
    const key = `${prompt.kind === 'debugger'} ${prompt.place ?? ''}`;
    groups.set(key, [...(groups.get(key) ?? []), prompt]);
  }
  return [...groups.values()].map(sentence).join('; ');
}

/** A rank that was started again counts its prompts from 1 again. */
function keyOf({ number, since }: Prompt): string {
  return `${number} ${since}`;
}

function isAlike(one: Prompt, other: Prompt | undefined): boolean {
  return one.kind === other?.kind && one.text === other?.text;
}

/** The longest common prefix. */
function shared(words: readonly string[]): string {
  return words.reduce((a, b) => {
    let i = 0;
    while (i < a.length && a[i] === b[i]) {
      i += 1;
    }
    return a.slice(0, i);
  });
}

function sentence(alike: readonly Prompt[]): string {
  const { kind, place = '' } = alike[0];
  const who = nameRanks(alike.map(({ rank }) => rank));
  const line = PLACE.exec(place)?.[1];
  const where = line ? trans.__('cell line %1', line) : place.slice(0, 60);
  return kind === 'debugger'
    ? trans._n('%2 is in the debugger at %3', '%2 are in the debugger at %3', alike.length, who, where)
    : trans._n('%2 waits for input at %3', '%2 wait for input at %3', alike.length, who, where);
}
