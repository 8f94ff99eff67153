/** The steps that a user can take for a stuck run: interrupt, release, stacks, restart. */
import type { Api, Step } from '../api';
import { nameRanks } from '../ranks';
import { trans } from '../translation';
import type { RunModel } from './model';

/** Milliseconds after which an interrupt has ended nearly every run. */
const PATIENCE = 2_000;

export class Ladder {
  /** What the last step did, or why it failed; '' before the first. */
  said = '';
  isTrouble = false;
  /** The stacks of each rank's threads at `seenAt`; null if they are not shown. */
  stacks: ReadonlyMap<number, string> | null = null;
  seenAt = new Date();

  private underWay = new Set<string>();
  private interrupted = Infinity;

  constructor(
    private model: RunModel,
    private api: Api,
    private now: () => number = Date.now
  ) {}

  /** Whether the server has not yet replied to this step. */
  isUnderWay(step: Step | 'stacks', ranks: readonly number[] = []): boolean {
    return this.underWay.has(keyOf(step, ranks));
  }

  /** Whether the run goes on although it was interrupted, so that further steps are needed. */
  get isOutlived(): boolean {
    return this.model.isLive && this.now() - this.interrupted > PATIENCE;
  }

  /** Take a step, unless the same one is in progress. */
  async take(step: Step, ranks: readonly number[] = []): Promise<void> {
    await this.once(keyOf(step, ranks), DOING[step](ranks), async () => {
      const said = await this.api.take(this.model.id, step, ranks);
      if (step === 'interrupt') {
        this.interrupted = this.now();
      }
      return said;
    });
  }

  /** Fetch the stacks, for the first time or again. */
  async look(): Promise<void> {
    await this.once('stacks', trans.__('fetching the stacks of all ranks …'), async () => {
      this.stacks = await this.api.stacks(this.model.id);
      this.seenAt = new Date(this.now());
      return '';
    });
  }

  hideStacks(): void {
    this.stacks = null;
    this.model.notify();
  }

  private async once(key: string, doing: string, act: () => Promise<string>): Promise<void> {
    if (this.underWay.has(key)) {
      return;
    }
    this.underWay.add(key);
    this.say(doing, false);
    try {
      const said = await act();
      this.underWay.delete(key);
      this.say(said, false);
    } catch (error) {
      this.underWay.delete(key);
      this.say(error instanceof Error ? error.message : String(error), true);
    }
  }

  private say(text: string, isTrouble: boolean): void {
    this.said = text;
    this.isTrouble = isTrouble;
    this.model.notify();
  }
}

function keyOf(step: string, ranks: readonly number[]): string {
  return [step, ...ranks].join(' ');
}

const DOING: { [step in Step]: (ranks: readonly number[]) => string } = {
  interrupt: () => trans.__('interrupting all ranks …'),
  release: () => trans.__('releasing ranks that wait in a collective …'),
  restart: ranks => trans.__('restarting %1 …', nameRanks(ranks))
};
