/**
 * Where a long list is scrolled to. A browser cannot make a node of a hundred million pixels, so
 * beyond a limit the scrollbar's pixels stand for more than one pixel each.
 */

/** Pixels that every browser can scroll over. */
const TALLEST = 6_000_000;

export class Scroll {
  /** Pixels of the content above the view's top. */
  offset = 0;
  /** Whether the end stays in sight when something is added. */
  isFollowing = true;

  private content = 0;
  private view = 0;

  constructor(private tallest = TALLEST) {}

  /** Tell how high everything is now. */
  resize(content: number, view: number): void {
    this.content = content;
    this.view = view;
    this.offset = this.isFollowing ? this.end : Math.min(this.offset, this.end);
  }

  /** The greatest offset. */
  get end(): number {
    return Math.max(0, this.content - this.view);
  }

  /** Pixels of the node that makes the scrollbar. */
  get spacer(): number {
    return Math.min(this.content, this.tallest);
  }

  /** Whether the scrollbar's pixels stand for more than one each. */
  get isScaled(): boolean {
    return this.content > this.tallest;
  }

  /** The browser's scrollTop for the offset. */
  get scrollTop(): number {
    return this.isScaled ? (this.offset / this.end) * (this.spacer - this.view) : this.offset;
  }

  /**
   * The browser's scrollTop was changed by the reader, or by a view that is so high now: at the end,
   * one that grows moves what is in it.
   */
  scrolledTo(scrollTop: number, view = this.view): void {
    this.view = view;
    const last = this.spacer - view;
    const offset = this.isScaled ? (scrollTop / last) * this.end : scrollTop;
    // The view's height is rounded, and a pixel of the scrollbar may stand for many.
    this.moveTo(scrollTop >= last - 1 ? Infinity : offset);
  }

  /** Move to an offset; at the end, what is added is followed. */
  moveTo(offset: number): void {
    this.offset = Math.min(Math.max(0, offset), this.end);
    this.isFollowing = this.offset >= this.end - 2;
  }
}
