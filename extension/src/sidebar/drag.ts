/** Dragging a card into a notebook drops the cell that attaches it. */
import { MimeData } from '@lumino/coreutils';
import { Drag } from '@lumino/dragdrop';

import { h } from '../view/dom';
import { attachCell, attachSource, CELLS } from './attach';

/** Pixels that the pointer must move to begin a drag. */
const BEGIN = 5;

/** Make a node the handle by which its cluster is dragged. */
export function dragCell(handle: HTMLElement, cluster: () => string): void {
  handle.addEventListener('pointerdown', down => {
    // Touch scrolls the sidebar.
    if (down.button !== 0 || down.pointerType === 'touch') {
      return;
    }
    const move = (event: PointerEvent): void => {
      if (Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) >= BEGIN) {
        end();
        begin(event, cluster());
      }
    };
    const end = (): void => {
      document.removeEventListener('pointermove', move);
      document.removeEventListener('pointerup', end);
      document.removeEventListener('pointercancel', end);
    };
    document.addEventListener('pointermove', move);
    document.addEventListener('pointerup', end);
    document.addEventListener('pointercancel', end);
    // Do not select text on the way.
    down.preventDefault();
  });
}

function begin(event: PointerEvent, cluster: string): void {
  const mimeData = new MimeData();
  mimeData.setData(CELLS, [attachCell(cluster)]);
  mimeData.setData('text/plain', attachSource(cluster));
  const drag = new Drag({
    mimeData,
    dragImage: h('div', 'rr-drag-image', {}, attachSource(cluster)),
    supportedActions: 'copy',
    proposedAction: 'copy'
  });
  void drag.start(event.clientX, event.clientY).then(() => drag.dispose());
}
