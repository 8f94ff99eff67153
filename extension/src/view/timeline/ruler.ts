/** The time axis above the timeline. */
import { ticks, type TimeScale } from '../../timeline/range';
import { h } from '../dom';
import type { Theme } from './theme';

export const RULER = 18;

export class Ruler {
  readonly node = h('canvas', 'rr-tl-ruler', { 'aria-hidden': 'true' });

  paint(scale: TimeScale, theme: Theme, ratio: number): void {
    const { node } = this;
    const [width, height] = [Math.max(1, scale.width), Math.round(RULER * ratio)];
    if (node.width !== width || node.height !== height) {
      node.width = width;
      node.height = height;
    }
    const context = node.getContext('2d');
    if (!context) {
      return;
    }
    context.clearRect(0, 0, width, height);
    context.font = `${Math.round(10 * ratio)}px ${theme.font}`;
    context.textBaseline = 'middle';
    for (const { t, label } of ticks(scale, 90 * ratio)) {
      const x = Math.round(scale.x(t));
      context.fillStyle = theme.line;
      context.fillRect(x, 0, Math.max(1, ratio), height);
      context.fillStyle = theme.faint;
      if (x + 3 * ratio + context.measureText(label).width <= width) {
        context.fillText(label, x + 3 * ratio, height / 2);
      }
    }
  }
}
