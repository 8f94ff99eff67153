/**
 * The scroll position of a long list. A browser cannot make a node a hundred million pixels high, so
 * beyond a limit, each pixel of the scrollbar stands for several.
 */

/** The height in pixels that every browser can scroll. */
const TALLEST = 6_000_000;

export class Scroll {
  /** Pixels of the content above the view's top. */
  offset = 0;
  /** Whether the end stays visible when lines are added. */
  isFollowing = true;

  private content = 0;
  private view = 0;

  constructor(private tallest = TALLEST) {}

  /** Set the current heights of the content and the view. */
  resize(content: number, view: number): void {
    this.content = content;
    this.view = view;
    this.offset = this.isFollowing ? this.end : Math.min(this.offset, this.end);
  }

  /** The greatest offset. */
  get end(): number {
    return Math.max(0, this.content - this.view);
  }

  /** The height of the node that makes the scrollbar. */
  get spacer(): number {
    return Math.min(this.content, this.tallest);
  }

  /** Whether each pixel of the scrollbar stands for several. */
  get isScaled(): boolean {
    return this.content > this.tallest;
  }

  /** The browser's scrollTop for the offset. */
  get scrollTop(): number {
    return this.isScaled ? (this.offset / this.end) * (this.spacer - this.view) : this.offset;
  }

  /**
   * Take over the browser's scrollTop, which was changed by the reader or by the view's new height:
   * at the end, a growing view moves its content.
   */
  scrolledTo(scrollTop: number, view = this.view): void {
    this.view = view;
    const last = this.spacer - view;
    const offset = this.isScaled ? (scrollTop / last) * this.end : scrollTop;
    // The view's height is rounded, and a pixel of the scrollbar may stand for many.
    this.moveTo(scrollTop >= last - 1 ? Infinity : offset);
  }

  /** Move to an offset; at the end, follow the lines that are added. */
  moveTo(offset: number): void {
    this.offset = Math.min(Math.max(0, offset), this.end);
    this.isFollowing = this.offset >= this.end - 2;
  }
}
