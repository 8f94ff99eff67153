/** Alternates between layout and painting, as both are too much for one frame of a long run. */

/** After more than this many milliseconds of layout, a frame is not painted. */
const LAYING = 4;
/** Maximum delay of painting in milliseconds, as a live run may have more to lay out in each frame. */
const LONGEST = 100;

export class Turns {
  /** Whether lanes are being laid out. */
  isLaying = false;
  /** Since when painting has been delayed. */
  private since: number | null = null;

  /** Return whether to paint in this frame. `lay` lays out for a time slice, and returns whether that is done. */
  take(lay: () => boolean, hasPicture: boolean): boolean {
    const begun = performance.now();
    this.since ??= begun;
    const isLate = begun - this.since > LONGEST;
    if (this.isLaying && hasPicture && isLate) {
      return true;
    }
    this.isLaying = !lay();
    return !hasPicture || isLate || performance.now() - begun <= LAYING;
  }

  /** Note that a frame was painted. */
  end(): void {
    this.since = null;
  }
}
