/** Laying out and painting take turns, as both are too much for one frame of a long run. */

/** Milliseconds of laying out that leave no room for a picture in the same frame. */
const LAYING = 4;
/** No picture is put off for longer, in milliseconds: a live run may have more to lay out in each frame. */
const LONGEST = 100;

export class Turns {
  /** Whether lanes are being laid out. */
  isLaying = false;
  /** Since when a picture has been put off. */
  private since: number | null = null;

  /** Whether to paint in this frame. `lay` lays out for a slice, and says whether that is done. */
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

  /** A picture was painted. */
  end(): void {
    this.since = null;
  }
}
