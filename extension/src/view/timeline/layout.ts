/** The lanes of a timeline at two levels of detail: first an overview, if the run is long; then all spans. */
import type { RunModel } from '../../run/model';
import { runSlice } from '../../run/slices';
import { layOut, Rows, type Lane } from '../../timeline/lanes';
import type { Look } from '../../timeline/look';
import type { SpanSource } from '../../timeline/spans';

/** The lanes as they were laid out last, and a layout in progress. */
class LaneLayout {
  readonly rows: Rows;
  lanes: Lane[] = [];
  height = 0;
  /** Identifies what the lanes show; '' before there are any. */
  key = '';
  /** How often the collectives were replaced, as they change the lanes. */
  private matches = 0;
  private laying: { key: string; steps: ReturnType<typeof layOut> } | null = null;

  constructor(
    private model: RunModel,
    readonly source: SpanSource
  ) {
    this.rows = new Rows(source);
  }

  /** Take over the matched collectives once they are known. */
  match(): void {
    const { value } = this.model.collectives;
    if (value && value !== this.rows.collectives) {
      this.rows.collectives = value;
      this.matches += 1;
    }
  }

  /** Lay out for a time slice if something has changed; start nothing if `isResting`. Return whether all is done. */
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
  /** The layout of the overview, until the lanes of all spans are laid out. */
  private coarse: LaneLayout | null = null;

  constructor(private model: RunModel) {
    this.exact = new LaneLayout(model, model.spans);
  }

  /** The layout that is shown. */
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

  /** Show the overview as soon as it is loaded, unless all spans are laid out. */
  takeOverview(): void {
    const { overview } = this.model;
    if (overview && !this.coarse && !this.exact.key) {
      this.coarse = new LaneLayout(this.model, overview);
    }
  }

  /** As in `LaneLayout`; the spans replace the overview once all are read and their collectives are matched. */
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

  /** Whether the collectives are matched, or cannot be. */
  private get isMatched(): boolean {
    const { collectives } = this.model;
    return !this.hasCollectives || this.exact.rows.collectives !== null || collectives.trouble !== '';
  }
}
