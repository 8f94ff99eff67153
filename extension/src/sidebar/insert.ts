/** Putting the attach cell into the notebook that is open. */
import { Clipboard, Notification } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';

import { trans } from '../translation';
import { attachCell, attachSource } from './attach';

/** Below the active cell, and selected; without a notebook it is offered to be copied. */
export async function insertAttachCell(notebooks: INotebookTracker | null, cluster: string): Promise<void> {
  // What is read from disk takes the place of all cells that are there before.
  await notebooks?.currentWidget?.context.ready;
  const notebook = notebooks?.currentWidget?.content;
  const cells = notebook?.model?.sharedModel;
  if (!notebook || !cells) {
    Notification.info(trans.__('Open a notebook first: the cell goes below its active cell.'), {
      autoClose: 8_000,
      actions: [{ label: trans.__('Copy the cell'), callback: () => Clipboard.copyToSystem(attachSource(cluster)) }]
    });
    return;
  }
  const index = notebook.activeCellIndex + 1;
  cells.insertCell(index, attachCell(cluster) as Parameters<typeof cells.insertCell>[1]);
  notebook.deselectAll();
  notebook.activeCellIndex = index;
  notebook.mode = 'command';
  notebook.activate();
}
