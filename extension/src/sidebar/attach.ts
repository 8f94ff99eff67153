/** The cell that lets a notebook use a cluster which runs already. */
import type { ICell } from '@jupyterlab/nbformat';

/** What cells are called when they are dragged; notebooks take such. */
export const CELLS = 'application/vnd.jupyter.cells';

export function attachSource(cluster: string): string {
  return `%load_ext rankroom\n%cluster attach ${cluster}`;
}

export function attachCell(cluster: string): ICell {
  return { cell_type: 'code', source: attachSource(cluster), metadata: {}, outputs: [], execution_count: null };
}
