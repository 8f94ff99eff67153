/** A node that scrolls a list: by wheel, keys and scrollbar, or on request. */
import { trans } from '../translation';
import { h } from './dom';
import { Scroll } from './scroll';

export class ScrollBox {
  readonly scroll = new Scroll();
  readonly node: HTMLElement;
  lineHeight = 17;
  /** The scrollTop that was set here last; a different one comes from the reader. */
  private expected = 0;
  /** Whether a requested position is not painted yet. */
  private isAsked = false;

  /** `space` gets the height that the scrollbar needs; `moved` is called when the position or the focus changes. */
  constructor(
    private space: HTMLElement,
    private moved: (byReader: boolean) => void
  ) {
    this.node = h(
      'div',
      'rr-list jp-RenderedText',
      {
        tabindex: '0',
        role: 'log',
        'aria-live': 'off',
        'aria-label': trans.__('log of the ranks'),
        onscroll: () => this.onScroll(),
        onkeydown: (event: KeyboardEvent) => this.onKey(event),
        onwheel: (event: WheelEvent) => this.onWheel(event),
        onfocusin: () => this.moved(false),
        onfocusout: () => this.moved(false)
      },
      space
    );
  }

  get hasFocus(): boolean {
    return this.node.contains(document.activeElement);
  }

  goTo(offset: number, byReader = false): void {
    this.scroll.moveTo(Math.max(0, offset));
    this.isAsked = true;
    this.moved(byReader);
  }

  /** Set the content's height, and move the browser's scrollbar to the current position. */
  place(content: number): void {
    this.scroll.resize(content, this.node.clientHeight);
    this.space.style.height = `${this.scroll.spacer}px`;
    if (Math.abs(this.node.scrollTop - this.scroll.scrollTop) >= 1) {
      this.node.scrollTop = this.scroll.scrollTop;
    }
    this.expected = this.node.scrollTop;
    this.isAsked = false;
  }

  /** Take over a scroll by the reader, unless a requested position is not painted yet: that one wins. */
  private onScroll(): void {
    const { scrollTop, clientHeight } = this.node;
    if (!this.isAsked && Math.abs(scrollTop - this.expected) > 1) {
      this.scroll.scrolledTo(scrollTop, clientHeight);
      this.expected = scrollTop;
      this.moved(true);
    }
  }

  /** Scroll by pixels even if each pixel of the scrollbar stands for several. */
  private onWheel(event: WheelEvent): void {
    const scrolls = getComputedStyle(this.node).overflowY !== 'hidden';
    if (this.scroll.isScaled && scrolls && !event.ctrlKey) {
      event.preventDefault();
      const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? this.lineHeight : 1;
      this.goTo(this.scroll.offset + event.deltaY * unit, true);
    }
  }

  private onKey(event: KeyboardEvent): void {
    const page = this.node.clientHeight - this.lineHeight;
    const steps: { [key: string]: number } = {
      ArrowUp: -this.lineHeight,
      ArrowDown: this.lineHeight,
      PageUp: -page,
      PageDown: page,
      ' ': event.shiftKey ? -page : page,
      Home: -Infinity,
      End: Infinity
    };
    // On a button, the space bar presses it.
    const isPressed = event.key === ' ' && event.target !== this.node;
    const step = isPressed ? undefined : steps[event.key];
    if (step !== undefined && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      event.stopPropagation();
      this.goTo(this.scroll.offset + step, true);
    }
  }
}
