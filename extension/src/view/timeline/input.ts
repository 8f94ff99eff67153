/** Translates mouse and keyboard input over a timeline or plot into moves and actions. */
import { TimeScale, type Range } from '../../timeline/range';

/** How many pixels the pointer may move during a click. */
const STILL = 4;
const ZOOM = 0.8;
const STEP = 0.15;

/** A range that can be moved, and in which a part can be selected. */
export interface Movable {
  readonly range: Range;
  zoom(at: number, factor: number): void;
  pan(by: number): void;
  /** Null for no part. */
  select(part: Range | null): void;
}

export interface InputActions {
  /** The range or the selection changed. */
  moved(): void;
  hover(x: number, y: number): void;
  leave(): void;
  click(x: number, y: number): void;
  zoomHere(x: number, y: number): void;
  /** Handle a key that does not move the range; return whether it was handled. */
  key(key: string, isShift: boolean): boolean;
}

/** The keys that the timeline handles while it has the focus, in addition to arrows and Enter. */
export const KEYS = 'w a s d f l . , / Escape + - W A S D F L';

export class Input {
  private drag: { x: number; t: number; isPan: boolean; isMoved: boolean } | null = null;
  /** Where the pointer is, as the center for zooming by keys; null when it is elsewhere. */
  private x: number | null = null;

  constructor(
    private node: HTMLElement,
    private body: HTMLElement,
    private look: Movable,
    private actions: InputActions
  ) {
    node.addEventListener('pointerdown', event => this.onDown(event));
    node.addEventListener('pointermove', event => this.onMove(event));
    node.addEventListener('pointerup', event => this.onUp(event));
    node.addEventListener('pointercancel', () => this.onCancel());
    node.addEventListener('pointerleave', () => this.onLeave());
    node.addEventListener('dblclick', event => actions.zoomHere(...this.place(event)));
    body.addEventListener('keydown', event => this.onKey(event));
    // Not passive: otherwise Ctrl and the wheel would zoom the page.
    body.addEventListener('wheel', event => this.onWheel(event), { passive: false });
  }

  private get scale(): TimeScale {
    return new TimeScale(this.look.range, this.node.clientWidth);
  }

  private place(event: MouseEvent): [number, number] {
    const box = this.node.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  private onDown(event: PointerEvent): void {
    if (event.button > 1) {
      return;
    }
    event.preventDefault();
    this.body.focus({ preventScroll: true });
    this.node.setPointerCapture(event.pointerId);
    const [x] = this.place(event);
    this.drag = { x, t: this.scale.t(x), isPan: event.shiftKey || event.button === 1, isMoved: false };
  }

  private onMove(event: PointerEvent): void {
    const [x, y] = this.place(event);
    this.x = x;
    const { drag, look } = this;
    if (!drag) {
      this.actions.hover(x, y);
      return;
    }
    drag.isMoved ||= Math.abs(x - drag.x) >= STILL;
    if (!drag.isMoved) {
      return;
    }
    if (drag.isPan) {
      look.pan(drag.t - this.scale.t(x));
    } else {
      const t = this.scale.t(Math.min(Math.max(x, 0), this.node.clientWidth));
      look.select({ from: Math.min(t, drag.t), to: Math.max(t, drag.t) });
    }
    this.actions.moved();
  }

  private onUp(event: PointerEvent): void {
    const { drag } = this;
    this.drag = null;
    if (drag && !drag.isMoved) {
      this.actions.click(...this.place(event));
    } else if (drag) {
      this.actions.moved();
    }
  }

  /** Clear the selection when the browser takes the pointer, as for scrolling by touch. */
  private onCancel(): void {
    const { drag } = this;
    this.drag = null;
    if (drag?.isMoved && !drag.isPan) {
      this.look.select(null);
      this.actions.moved();
    }
  }

  /** Whether the pointer is dragging, to select or to pan. */
  get isDragging(): boolean {
    return this.drag !== null && this.drag.isMoved;
  }

  private onLeave(): void {
    this.x = null;
    this.actions.leave();
  }

  private onWheel(event: WheelEvent): void {
    const { look, scale } = this;
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 20 : 1;
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const factor = Math.exp(Math.min(Math.max(event.deltaY * unit, -200), 200) * 0.0025);
      look.zoom(scale.t(this.place(event)[0]), factor);
    } else if (isSideways && document.activeElement === this.body) {
      event.preventDefault();
      look.pan(event.deltaX * unit * scale.perPixel);
    } else {
      return;
    }
    this.actions.moved();
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.body) {
      return;
    }
    const { look } = this;
    const span = look.range.to - look.range.from;
    const at = this.x === null ? look.range.from + span / 2 : this.scale.t(this.x);
    const moves: { [key: string]: (() => void) | undefined } = {
      w: () => look.zoom(at, ZOOM),
      '+': () => look.zoom(at, ZOOM),
      s: () => look.zoom(at, 1 / ZOOM),
      '-': () => look.zoom(at, 1 / ZOOM),
      a: () => look.pan(-STEP * span),
      d: () => look.pan(STEP * span)
    };
    const move = moves[event.key.toLowerCase()];
    if (move) {
      move();
      this.actions.moved();
    }
    if (move || this.actions.key(event.key, event.shiftKey)) {
      event.preventDefault();
      event.stopPropagation();
    }
  }
}
