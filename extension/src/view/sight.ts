/**
 * Return the browser's own IntersectionObserver. JupyterLab replaces it by a subclass that puts off what it
 * reports while a notebook scrolls, and may lose it.
 */
export function nativeObserver(): typeof IntersectionObserver {
  let found = window.IntersectionObserver;
  for (let base = Object.getPrototypeOf(found); base !== Function.prototype; base = Object.getPrototypeOf(base)) {
    found = base;
  }
  return found;
}

/** Tracks whether a node is visible: on the screen, in the current tab, in a window that is not hidden. */
export class Sight {
  isSeen = false;
  private isOnScreen = false;
  private observer: IntersectionObserver;

  constructor(
    node: HTMLElement,
    private tell: (isSeen: boolean) => void
  ) {
    this.observer = new (nativeObserver())(
      entries => {
        this.isOnScreen = entries[entries.length - 1].isIntersecting;
        this.look();
      },
      // A little ahead, so that nodes are ready when they are scrolled into view.
      { rootMargin: '200px' }
    );
    this.observer.observe(node);
    document.addEventListener('visibilitychange', this.look);
  }

  dispose(): void {
    this.observer.disconnect();
    document.removeEventListener('visibilitychange', this.look);
    this.isOnScreen = false;
    this.look();
  }

  private look = (): void => {
    const isSeen = this.isOnScreen && document.visibilityState === 'visible';
    if (isSeen !== this.isSeen) {
      this.isSeen = isSeen;
      this.tell(isSeen);
    }
  };
}
