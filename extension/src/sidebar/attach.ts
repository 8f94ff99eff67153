/** The cell that attaches a notebook to a cluster that is already running. */
import type { ICell } from '@jupyterlab/nbformat';

/** The MIME type of dragged cells, which notebooks accept. */
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
