/** The lanes of a timeline at its two levels of detail: an overview first, if the run is long, and each span. */
import type { RunModel } from '../../run/model';
import { runSlice } from '../../run/slices';
import { layOut, Rows, type Lane } from '../../timeline/lanes';
import type { Look } from '../../timeline/look';
import type { SpanSource } from '../../timeline/spans';

/** Lanes as they were laid out last, and those that are being laid out. */
class LaneLayout {
  readonly rows: Rows;
  lanes: Lane[] = [];
  height = 0;
  /** Stands for what the lanes show; '' before there are any. */
  key = '';
  /** How often the collectives were taken over: they change the lanes. */
  private matches = 0;
  private laying: { key: string; steps: ReturnType<typeof layOut> } | null = null;

  constructor(
    private model: RunModel,
    readonly source: SpanSource
  ) {
    this.rows = new Rows(source);
  }

  /** Take over which collectives belong together, once that is known. */
  match(): void {
    const { value } = this.model.collectives;
    if (value && value !== this.rows.collectives) {
      this.rows.collectives = value;
      this.matches += 1;
    }
  }

  /** Lay out for a slice if there is more than before, or other, but not `isResting`; returns whether all is done. */
  advance(ranks: readonly number[], look: Look, isResting: boolean): boolean {
    const { source, rows } = this;
    const { samples } = this.model;
    const open = look.open ?? new Set<string>();
    const key = [source.version, samples.version, this.matches, look.meters, ranks.join(' '), [...open].join('\n')].join();
    if (!this.laying) {
      if (key === this.key || (isResting && this.key)) {
        return true;
      }
      this.laying = { key, steps: layOut(rows, samples, ranks, { open, meters: look.meters }) };
    }
    const last = runSlice(this.laying.steps);
    if (last.done) {
      this.lanes = last.value.lanes;
      this.height = last.value.height;
      this.key = this.laying.key;
      this.laying = null;
    }
    return this.key === key;
  }
}

export class Levels {
  readonly exact: LaneLayout;
  /** The run's overview, until the lanes of all its spans are laid out. */
  private coarse: LaneLayout | null = null;

  constructor(private model: RunModel) {
    this.exact = new LaneLayout(model, model.spans);
  }

  /** What is shown now. */
  get laid(): LaneLayout {
    return this.coarse ?? this.exact;
  }

  get isCoarse(): boolean {
    return this.coarse !== null;
  }

  get hasCollectives(): boolean {
    const { spans } = this.model;
    return spans.ranks.some(rank => spans.cats(rank).includes('collective'));
  }

  /** Begin with the overview as soon as it is there. */
  takeOverview(): void {
    const { overview } = this.model;
    if (overview && !this.coarse && !this.exact.key) {
      this.coarse = new LaneLayout(this.model, overview);
    }
  }

  /** As LaneLayout's; all spans take the place of the overview once they are here, and matched. */
  advance(ranks: readonly number[], look: Look, isReading: boolean, isResting: boolean): boolean {
    if (!this.coarse) {
      return this.exact.advance(ranks, look, isResting);
    }
    const isDone = this.coarse.advance(ranks, look, false);
    if (!isDone || isReading || !this.isMatched) {
      return isDone;
    }
    const isExact = this.exact.advance(ranks, look, false);
    this.coarse = isExact ? null : this.coarse;
    return isExact;
  }

  /** Whether it is known which collectives belong together, or cannot be. */
  private get isMatched(): boolean {
    const { collectives } = this.model;
    return !this.hasCollectives || this.exact.rows.collectives !== null || collectives.trouble !== '';
  }
}
