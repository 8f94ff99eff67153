/** A raised hand, and a teacher's board. */
import { LabIcon } from '@jupyterlab/ui-components';

const HAND = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" fill="#616161">
    <path d="M7.5 13V5.8a1.3 1.3 0 0 1 2.6 0V11h.8V3.8a1.3 1.3 0 0 1 2.6 0V11h.8V4.8a1.3 1.3 0 0 1 2.6 0v7.4l.9-1.2a1.4 1.4 0 0 1
    2.2 1.7l-3.1 6.1A5.3 5.3 0 0 1 12.2 21.5h-.4a4.3 4.3 0 0 1-4.3-4.3z"/>
  </g>
</svg>`;
const BOARD = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" fill="#616161">
    <path d="M3 4h18v12H3zm2 2v8h14V6zm6 10h2v2l4 3h-3l-2-1.5-2 1.5H7l4-3z" fill-rule="evenodd"/>
    <path d="M7 8h3v4H7zm5 0h5v1.5h-5zm0 2.5h5V12h-5z"/>
  </g>
</svg>`;

export const handIcon = new LabIcon({ name: 'rankroom:hand', svgstr: HAND });
export const boardIcon = new LabIcon({ name: 'rankroom:board', svgstr: BOARD });
