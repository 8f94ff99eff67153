/** The tooltip of a plot, at the pointer or at a place chosen with the keyboard. */
import type { Choice } from '../../metrics/choice';
import { otherRows, placeWords, tipRows } from '../../metrics/phrases';
import { OTHERS } from '../../metrics/plotstyle';
import { h, setText } from '../dom';
import { Tip } from '../timeline/tip';
import type { PlotView } from './plot';
import { lineSample } from './sample';

export class PlotTip {
  /** The same text for screen readers. */
  readonly said = h('span', 'rr-hidden', { 'aria-live': 'polite' });
  private tip = new Tip();

  dispose(): void {
    this.tip.dispose();
  }

  hide(): void {
    this.tip.hide();
    setText(this.said, '');
  }

  /** Show the tooltip beside a place in the window; `colours` are those of ranks. */
  show(plot: PlotView, { axis, window }: Choice, x: number, left: number, top: number, colours: readonly string[]): void {
    const { lines, others, ranks } = plot;
    const { from, to } = window.range;
    const place = placeWords(axis, x, ranks.every(({ isEachPoint }) => isEachPoint), (to - from) / plot.width);
    const rows = [...tipRows(lines, ranks, x), ...otherRows(lines, others, x)];
    const shown = rows.map(({ rank, other, text }) => {
      if (other !== undefined) {
        return h('span', 'rr-mt-tip', {}, lineSample(other, colours[OTHERS[other].rank]), text);
      }
      const swatch = h('span', 'rr-mt-swatch', { 'aria-hidden': 'true' });
      swatch.style.background = rank === null ? 'transparent' : colours[rank % colours.length];
      return h('span', 'rr-mt-tip', {}, swatch, text);
    });
    this.tip.show([`${plot.name} · ${place}`, ...shown], left, top);
    if (plot.node === document.activeElement) {
      setText(this.said, [place, ...rows.map(({ text }) => text)].join(', '));
    }
  }
}
