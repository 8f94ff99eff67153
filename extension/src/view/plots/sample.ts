/** A sample of a line as drawn in the plots, for a legend. */
import { OTHERS } from '../../metrics/plotstyle';
import { COLOURS } from '../../ranks';

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 26;

/** Return the CSS color of a rank, or of a mean if null. */
export function rankColour(rank: number | null): string {
  return rank === null ? 'currentColor' : `var(--rr-c${rank % COLOURS})`;
}

/** Draw the line of a compared run, or one with these dashes; without `colour`, in the style sheet's color. */
export function lineSample(line: number | readonly number[], colour?: string): SVGSVGElement {
  const [dash, shown] = typeof line === 'number' ? [OTHERS[line].dash, rankColour(OTHERS[line].rank)] : [line, 'currentColor'];
  const node = document.createElementNS(SVG, 'svg');
  const path = document.createElementNS(SVG, 'path');
  const of = (element: Element, attributes: { [name: string]: string }): void =>
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  of(node, { class: 'rr-mt-sample', width: String(WIDTH), height: '8', 'aria-hidden': 'true' });
  of(path, { d: `M0 4h${WIDTH}`, fill: 'none', 'stroke-width': '2', 'stroke-dasharray': dash.join(' ') });
  path.style.stroke = colour ?? shown;
  node.append(path);
  return node;
}
