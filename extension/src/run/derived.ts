/** A value computed from a run's record: while its view is visible, and again, after a pause, when the record grows. */
import { Signal, type ISignal } from '@lumino/signaling';

/** The pause between two computations: at least REST ms (RETRY after a failure), and SHARE times what the last took. */
const REST = 1_000;
const SHARE = 5;
const RETRY = 5_000;

export interface Source<T> {
  /** Identifies everything that the value is computed from. */
  key(): string;
  /** Whether nothing more will arrive. */
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

  /** Emitted when there is a new value or error, or when `refresh` may compute one. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Whether the value was computed from everything that is available. */
  get isUpToDate(): boolean {
    return this.made === this.source.key();
  }

  /** Compute the value again if there is more, after the pause. Call this while the view is visible. */
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

  /** Drop the value. */
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
      // Unless `forget` was called meanwhile.
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
