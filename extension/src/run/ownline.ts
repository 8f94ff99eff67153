/** Find the user's own line among those of libraries. */
import { plain } from '../log/ansi';

const CELL = /^Cell\b/;
const FRAME = /^(?:Cell|File)\b/;
const ARROW = /^-+> ?(\d+)\b/;

/**
 * Return the index of the traceback's line that shows the cell's own line, nearest to the error; -1 if
 * there is none. IPython marks a line of every frame with an arrow; `cellLine` is the number to find.
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
