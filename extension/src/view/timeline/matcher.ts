/** Matches the collectives of a run bit by bit, and anew when there is more. */
import { matching } from '../../timeline/match';
import { Bands } from '../../timeline/parts';
import type { Spans } from '../../timeline/spans';
import type { RunModel } from '../../run/model';
import { inSlices } from '../../run/slices';

/** A live run is matched anew after so many times the time that it took. */
const PAUSES = 5;
const LEAST = 500;

export class Matcher {
  private version = -1;
  private spans: Spans | null = null;
  private isBusy = false;
  private timer = 0;
  private notBefore = 0;
  private isOver = false;

  constructor(
    private model: RunModel,
    private done: (bands: Bands) => void
  ) {}

  dispose(): void {
    this.isOver = true;
    clearTimeout(this.timer);
  }

  /** Match when the record is here and nothing else is to be done. */
  request(): void {
    const { model } = this;
    const isKnown = this.spans === model.spans && this.version === model.spans.version;
    const isHere = model.isComplete || model.read >= model.size;
    if (this.isBusy || this.isOver || isKnown || !isHere || this.timer) {
      return;
    }
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      void this.match();
    }, Math.max(0, this.notBefore - performance.now()));
  }

  private async match(): Promise<void> {
    this.isBusy = true;
    const begun = performance.now();
    const { spans, run } = this.model;
    this.spans = spans;
    this.version = spans.version;
    const orders = new Map(spans.ranks.map(rank => [rank, spans.columns(rank, 'collective').order]));
    let bands: Bands | null = null;
    const steps = (function* (): Generator<void> {
      bands = new Bands(yield* matching(spans, run), orders);
    })();
    try {
      await inSlices(steps);
    } finally {
      this.isBusy = false;
      this.notBefore = performance.now() + Math.max(LEAST, PAUSES * (performance.now() - begun));
    }
    if (bands && !this.isOver) {
      this.done(bands);
    }
    this.request();
  }
}
