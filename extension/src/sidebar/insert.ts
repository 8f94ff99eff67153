/** Insert a cell into the open notebook. */
import { Clipboard, Notification } from '@jupyterlab/apputils';
import type { ICell } from '@jupyterlab/nbformat';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

import { trans } from '../translation';
import { attachCell, attachSource } from './attach';

/** Insert the cell that attaches to a cluster, as `insertCell` does. */
export async function insertAttachCell(notebooks: INotebookTracker | null, cluster: string): Promise<void> {
  await insertCell(notebooks, attachCell(cluster), attachSource(cluster));
}

/** Insert a cell below the active one and select it; return the notebook. Without one, offer to copy `source`. */
export async function insertCell(notebooks: INotebookTracker | null, cell: ICell, source: string): Promise<NotebookPanel | null> {
  const panel = notebooks?.currentWidget ?? null;
  // Reading the notebook from disk replaces all cells that were there before.
  await panel?.context.ready;
  const notebook = panel?.content;
  const cells = notebook?.model?.sharedModel;
  if (!notebook || !cells) {
    Notification.info(trans.__('Open a notebook first: the cell is inserted below its active cell.'), {
      autoClose: 8_000,
      actions: [{ label: trans.__('Copy the cell'), callback: () => Clipboard.copyToSystem(source) }]
    });
    return null;
  }
  const index = notebook.activeCellIndex + 1;
  cells.insertCell(index, cell as Parameters<typeof cells.insertCell>[1]);
  notebook.deselectAll();
  notebook.activeCellIndex = index;
  notebook.mode = 'command';
  notebook.activate();
  return panel;
}
