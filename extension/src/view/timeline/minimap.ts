/** A strip of the whole run, with the visible part marked. */
import type { Lane } from '../../timeline/lanes';
import type { Look } from '../../timeline/look';
import type { Pixels } from '../../timeline/pixels';
import { TimeScale, inside } from '../../timeline/range';
import { trans } from '../../translation';
import { h } from '../dom';
import type { Theme } from './theme';

const HEIGHT = 34;
const LEAST_WINDOW = 4;

export class Minimap {
  readonly node = h('canvas', 'rr-tl-minimap', { 'aria-hidden': 'true', title: trans.__('the whole run: drag to move the visible range') });
  private picture = document.createElement('canvas');
  private key = '';
  private grabbed: number | null = null;

  constructor(
    private look: Look,
    private moved: () => void
  ) {
    this.node.addEventListener('pointerdown', event => this.onDown(event));
    this.node.addEventListener('pointermove', event => this.onMove(event));
    this.node.addEventListener('pointerup', () => (this.grabbed = null));
    this.node.addEventListener('pointercancel', () => (this.grabbed = null));
    this.node.addEventListener('dblclick', () => {
      this.look.fit(null);
      this.moved();
    });
  }

  /** `version` changes when the spans do. */
  paint(lanes: readonly Lane[], pixels: Pixels, theme: Theme, width: number, ratio: number, version: string): void {
    const { node, look } = this;
    const wide = Math.max(1, Math.round(width * ratio));
    const high = Math.round(HEIGHT * ratio);
    if (node.width !== wide || node.height !== high) {
      node.width = wide;
      node.height = high;
    }
    const key = `${version} ${wide} ${theme.key} ${JSON.stringify(look.bounds)}`;
    if (key !== this.key) {
      this.key = key;
      this.draw(lanes, pixels, wide);
    }
    const context = node.getContext('2d');
    if (!context) {
      return;
    }
    const scale = new TimeScale(look.bounds, wide);
    const left = Math.max(0, scale.x(look.range.from));
    const right = Math.max(left + LEAST_WINDOW, Math.min(wide, scale.x(look.range.to)));
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, wide, high);
    context.drawImage(this.picture, 0, 0, wide, this.picture.height, 0, 0, wide, high);
    context.fillStyle = theme.faint;
    context.globalAlpha = 0.35;
    context.fillRect(0, 0, left, high);
    context.fillRect(right, 0, wide - right, high);
    context.globalAlpha = 1;
    context.strokeStyle = theme.accent;
    context.lineWidth = ratio;
    context.strokeRect(left + 0.5, 0.5, Math.max(1, right - left - 1), high - 1);
  }

  /** Draw each rank in two rows of pixels: its activity, and its collectives. */
  private draw(lanes: readonly Lane[], pixels: Pixels, width: number): void {
    const lines = lanes.filter(({ kind }) => kind === 'rank').flatMap(lane => lane.lines);
    const rows = Math.max(1, lines.length);
    this.picture.width = width;
    this.picture.height = rows;
    const image = new ImageData(width, rows);
    const out = new Uint32Array(image.data.buffer);
    lines.forEach((line, i) => pixels.line(line, new TimeScale(this.look.bounds, width), out, i * width, null));
    this.picture.getContext('2d')?.putImageData(image, 0, 0);
  }

  private timeOf(event: PointerEvent): number {
    const { left, width } = this.node.getBoundingClientRect();
    return new TimeScale(this.look.bounds, width).t(event.clientX - left);
  }

  private onDown(event: PointerEvent): void {
    const { look } = this;
    if (event.button !== 0) {
      return;
    }
    event.preventDefault();
    this.node.setPointerCapture(event.pointerId);
    const t = this.timeOf(event);
    const isInside = t >= look.range.from && t <= look.range.to;
    this.grabbed = isInside ? t - look.range.from : (look.range.to - look.range.from) / 2;
    this.onMove(event);
  }

  private onMove(event: PointerEvent): void {
    if (this.grabbed === null) {
      return;
    }
    const { look } = this;
    const from = this.timeOf(event) - this.grabbed;
    const to = from + look.range.to - look.range.from;
    look.pan(inside({ from, to }, look.bounds).from - look.range.from);
    this.moved();
  }
}
