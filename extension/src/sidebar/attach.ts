/** The cell that lets a notebook use a cluster which runs already. */
import type { ICell } from '@jupyterlab/nbformat';

/** What cells are called when they are dragged; notebooks take such. */
export const CELLS = 'application/vnd.jupyter.cells';

export function attachSource(cluster: string): string {
  return `%load_ext rankroom\n%cluster attach ${cluster}`;
}

export function attachCell(cluster: string): ICell {
  return codeCell(attachSource(cluster));
}

/** A cell that has not run. */
export function codeCell(source: string): ICell {
  return { cell_type: 'code', source, metadata: {}, outputs: [], execution_count: null };
}
