/** Finding the user's own line among those of libraries. */
import { plain } from '../log/ansi';

const CELL = /^Cell\b/;
const FRAME = /^(?:Cell|File)\b/;
const ARROW = /^-+> ?(\d+)\b/;

/**
 * Which of a traceback's lines is the cell's own, nearest to the error; -1 if none is. IPython
 * points with an arrow at a line of every frame; `cellLine` is the number of the one meant.
 */
export function ownLine(lines: readonly string[], cellLine: number | null): number {
  let isInCell = false;
  let found = -1;
  lines.forEach((line, i) => {
    const text = plain(line);
    isInCell = FRAME.test(text) ? CELL.test(text) : isInCell;
    if (isInCell && cellLine !== null && Number(ARROW.exec(text)?.[1]) === cellLine) {
      found = i;
    }
  });
  return found;
}
