/** Four ranks around what they agree on. */
import { LabIcon } from '@jupyterlab/ui-components';

const SVG = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" fill="#616161">
    <rect x="3" y="3" width="7" height="7" rx="1.5"/>
    <rect x="14" y="3" width="7" height="7" rx="1.5"/>
    <rect x="3" y="14" width="7" height="7" rx="1.5"/>
    <rect x="14" y="14" width="7" height="7" rx="1.5"/>
    <path d="M6 10h1v4H6zm11 0h1v4h-1zm-7-4h4v1h-4zm0 11h4v1h-4z"/>
  </g>
</svg>`;

export const ranksIcon = new LabIcon({ name: 'rankroom:ranks', svgstr: SVG });
