/** What follows from a run's spans, derived while somebody looks: in slices, and again when there is more. */
import { Signal, type ISignal } from '@lumino/signaling';

import { inSlices } from '../run/slices';
import type { Run } from '../schema';
import { matching, type Matching } from './match';
import { profiling } from './profile';
import type { Profile } from './profilerows';
import type { SpanSource } from './spans';
import type { Stays } from './stays';

/** Milliseconds between two derivations of a run that goes on, and how often longer than one of them took. */
const REST = 1_000;
const SHARE = 5;

export interface Material {
  readonly run: Run;
  readonly spans: SpanSource;
  readonly stays: Stays;
  readonly isComplete: boolean;
}

export class Derivation {
  matching: Matching | null = null;
  profile: Profile | null = null;

  private derived = '';
  private isWorking = false;
  private rested = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private _changed = new Signal<this, void>(this);

  constructor(private material: Material) {}

  /** There is a new profile, or it is time to ask for one. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Whether everything that is here is in the profile. */
  get isUpToDate(): boolean {
    return this.derived === this.key();
  }

  /** Derive it again if there is more, soon; for whoever looks at it. */
  refresh(): void {
    if (this.isWorking || this.isUpToDate) {
      return;
    }
    const rest = this.rested - performance.now();
    if (rest <= 0 || this.material.isComplete) {
      void this.work();
    } else {
      this.timer ??= setTimeout(() => {
        this.timer = undefined;
        this._changed.emit();
      }, rest);
    }
  }

  /** Let go of all. */
  forget(): void {
    this.matching = null;
    this.profile = null;
    this.derived = '';
  }

  private async work(): Promise<void> {
    const { run, spans, stays } = this.material;
    const key = this.key();
    const begin = performance.now();
    this.isWorking = true;
    try {
      const found = await inTime(matching(spans, run));
      const profile = await inTime(profiling(spans, run, stays, found));
      // Unless all was let go of meanwhile.
      if (spans === this.material.spans) {
        this.matching = found;
        this.profile = profile;
        this.derived = key;
      }
    } finally {
      this.isWorking = false;
      const now = performance.now();
      this.rested = now + Math.max(REST, SHARE * (now - begin));
    }
    this._changed.emit();
  }

  private key(): string {
    const { run, spans, stays } = this.material;
    const ranks = run.ranks.map(({ rank, clock }) => `${rank} ${clock?.offset ?? 0}`).join();
    return `${spans.version}:${stays.version}:${ranks}`;
  }
}

/** What steps come to, with the browser free in between. */
async function inTime<T>(steps: Generator<void, T>): Promise<T> {
  let value: T | undefined;
  await inSlices(
    (function* (): Generator<void> {
      value = yield* steps;
    })()
  );
  return value as T;
}
