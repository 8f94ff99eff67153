/** The lanes of a timeline as they were laid out last, and those that are being laid out. */
import type { RunModel } from '../../run/model';
import { runSlice } from '../../run/slices';
import { layOut, Rows, type Lane } from '../../timeline/lanes';
import type { Look } from '../../timeline/look';

export class LaneLayout {
  readonly rows: Rows;
  lanes: Lane[] = [];
  height = 0;
  /** Stands for what the lanes show; '' before there are any. */
  key = '';
  /** How often the collectives were taken over: they change the lanes. */
  private matches = 0;
  private laying: { key: string; steps: ReturnType<typeof layOut> } | null = null;

  constructor(private model: RunModel) {
    this.rows = new Rows(model.spans);
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
    const { spans, samples } = this.model;
    const open = look.open ?? new Set<string>();
    const key = [spans.version, samples.version, this.matches, look.meters, ranks.join(' '), [...open].join('\n')].join();
    if (!this.laying) {
      if (key === this.key || (isResting && this.key)) {
        return true;
      }
      this.laying = { key, steps: layOut(spans, this.rows, samples, ranks, { open, meters: look.meters }) };
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
