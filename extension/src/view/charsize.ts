/** The size of the log's characters, and how many columns of them fit. */
import { h } from './dom';

const PROBE = 100;
/** Columns of the bar between ranks and text, with padding; the same as in style/log.css. */
const BAR = 3;
const LEAST = 10;

export class CharSize {
  readonly probe = h('span', 'rr-probe', { 'aria-hidden': 'true' }, '0'.repeat(PROBE));
  lineHeight = 17;
  columns = 80;

  /**
   * Measure the characters, and set the CSS variables by which lines wrap. `highest` is the highest rank.
   * Return whether the columns changed.
   */
  measure(space: HTMLElement, width: number, highest: number): boolean {
    const size = this.probe.getBoundingClientRect();
    if (size.width === 0) {
      return false;
    }
    const gutter = gutterFor(highest);
    const before = this.columns;
    this.lineHeight = Math.max(1, Math.round(size.height));
    this.columns = Math.max(LEAST, Math.floor((width * PROBE) / size.width) - gutter - BAR - 1);
    space.style.setProperty('--rr-line', `${this.lineHeight}px`);
    space.style.setProperty('--rr-columns', `${this.columns}ch`);
    space.style.setProperty('--rr-gutter', `${gutter}ch`);
    return this.columns !== before;
  }
}

/** Return the columns for ranks such as `0–3,5`; longer lists are cut, and shown in full on hover. */
function gutterFor(highest: number): number {
  if (highest === 0) {
    return 1;
  }
  return highest < 10 ? 5 : highest < 100 ? 8 : 11;
}
