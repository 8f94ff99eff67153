/** What follows from a run's record: made while somebody looks, and again, after a rest, when there is more. */
import { Signal, type ISignal } from '@lumino/signaling';

/** Milliseconds between two times, how often longer than one of them took, and after one that failed. */
const REST = 1_000;
const SHARE = 5;
const RETRY = 5_000;

export interface Source<T> {
  /** Stands for all that it follows from. */
  key(): string;
  /** Whether no more will come. */
  isComplete(): boolean;
  make(): Promise<T>;
}

export class Derived<T> {
  value: T | null = null;
  /** Why the last try failed, in a sentence; '' if it did not. */
  trouble = '';

  private made = '';
  private isWorking = false;
  private generation = 0;
  private rested = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private _changed = new Signal<this, void>(this);

  constructor(private source: Source<T>) {}

  /** There is a new value, or it is time to ask for one. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Whether everything that is here is in the value. */
  get isUpToDate(): boolean {
    return this.made === this.source.key();
  }

  /** Make it again soon if there is more. To be called while it is seen. */
  refresh(): void {
    if (this.isWorking || this.isUpToDate) {
      return;
    }
    const rest = this.rested - performance.now();
    if (rest <= 0 || (this.source.isComplete() && !this.trouble)) {
      void this.work();
    } else {
      this.timer ??= setTimeout(() => {
        this.timer = undefined;
        this._changed.emit();
      }, rest);
    }
  }

  /** Let go of it. */
  forget(): void {
    this.value = null;
    this.trouble = '';
    this.made = '';
    this.generation += 1;
  }

  private async work(): Promise<void> {
    const { generation } = this;
    const key = this.source.key();
    const begin = performance.now();
    this.isWorking = true;
    try {
      const value = await this.source.make();
      // Unless all was let go of meanwhile.
      if (generation === this.generation) {
        this.value = value;
        this.made = key;
        this.trouble = '';
      }
    } catch (error) {
      this.trouble = error instanceof Error ? error.message : String(error);
    } finally {
      this.isWorking = false;
      const now = performance.now();
      this.rested = now + Math.max(this.trouble ? RETRY : REST, SHARE * (now - begin));
    }
    this._changed.emit();
  }
}
