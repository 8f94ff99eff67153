/** What ranks of a live run ask: commands for their debuggers, and input(); and the reader's answers. */
import type { Api } from '../api';
import { nameRanks } from '../ranks';
import type { Prompt } from '../schema';
import { trans } from '../translation';
import type { RunModel } from './model';

/** A debugger asks again soon after an answer: the line stays meanwhile. */
const GRACE = 1_500;
const MOST_HISTORY = 200;
const PLACE = /^cell line (\d+)$/;

/** What was typed in this page, the newest last; a run is often tried again. */
const history: string[] = [];

export class Prompts {
  /** Why the last answer was not taken; '' if it was. */
  trouble = '';

  private chosen: number | null = null;
  private given = new Map<number, number>();
  /** The prompt that what is being typed was begun for. */
  private begun: Prompt | undefined;
  private answered = -Infinity;
  /** What of the history is shown; its length stands for what is being typed. */
  private at = history.length;
  private typed = '';

  constructor(
    private model: RunModel,
    private api: Api,
    private now: () => number = Date.now
  ) {}

  /** What is asked and was not answered here, by rank. */
  get asked(): Prompt[] {
    return this.model.prompts.filter(({ rank, number }) => this.given.get(rank) !== number);
  }

  /**
   * What the next answer is for: the chosen rank's prompt, or all that are like the first. What is being typed is for
   * those alone that are like the one it was begun for: it may be a password.
   */
  get targets(): Prompt[] {
    const { answerable, begun } = this;
    const first = begun ? answerable.find(prompt => isAlike(prompt, begun)) : answerable[0];
    return answerable.filter(prompt => isAlike(prompt, first));
  }

  /** The prompt that what is being typed was begun for, while that is not asked any more and others are. */
  get missed(): Prompt | undefined {
    return this.answerable.length > 0 && this.targets.length === 0 ? this.begun : undefined;
  }

  /** The rank that is asked alone, or null for all that ask. */
  get choice(): number | null {
    return this.chosen;
  }

  /** Whether the chosen rank has run on for a while, and others ask. */
  get isAway(): boolean {
    return this.asked.length > 0 && this.answerable.length === 0 && this.now() - this.answered >= GRACE;
  }

  /** Choose whom to answer, with what stands in the line. */
  choose(rank: number | null, text = ''): void {
    this.chosen = rank;
    this.begun = undefined;
    this.typing(text);
    this.model.notify();
  }

  /** What stands in the line now: other prompts that come up before Enter are not answered by it. */
  typing(text: string): void {
    this.begun = text ? (this.begun ?? this.targets[0]) : undefined;
  }

  /** Whether there is something to answer, or soon will be. */
  get isOpen(): boolean {
    return this.model.isLive && (this.asked.length > 0 || this.now() - this.answered < GRACE);
  }

  /** Give an answer; the prompts that it is for are asked no more. */
  async answer(text: string): Promise<void> {
    const { targets } = this;
    if (targets.length === 0) {
      return;
    }
    targets.forEach(({ rank, number }) => this.given.set(rank, number));
    if (text.trim() && targets[0].kind !== 'password' && history[history.length - 1] !== text) {
      history.push(text);
      history.splice(0, history.length - MOST_HISTORY);
    }
    this.at = history.length;
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

  /** What is asked of the chosen rank, or of all. */
  private get answerable(): Prompt[] {
    const { asked, chosen } = this;
    return chosen === null ? asked : asked.filter(({ rank }) => rank === chosen);
  }

  /** A line for a debugger with what all that can follow begins with, and all that can. */
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

  /** What was typed before (-1) or after (1) what is shown now. */
  recall(by: 1 | -1, shown: string): string {
    if (this.at === history.length) {
      this.typed = shown;
    }
    this.at = Math.max(0, Math.min(history.length, this.at + by));
    return history[this.at] ?? this.typed;
  }
}

/** Who waits for an answer, and where: `rank 2 is in the debugger at cell line 5`. */
export function askingWords(prompts: readonly Prompt[]): string {
  const groups = new Map<string, Prompt[]>();
  for (const prompt of prompts) {
    const key = `${prompt.kind === 'debugger'} ${prompt.place ?? ''}`;
    groups.set(key, [...(groups.get(key) ?? []), prompt]);
  }
  return [...groups.values()].map(sentence).join('; ');
}

function isAlike(one: Prompt, other: Prompt | undefined): boolean {
  return one.kind === other?.kind && one.text === other?.text;
}

/** What all of these begin with. */
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
