/** Collectives as the picture needs them: each span in its wait and its transfer, and who came last. */
import type { Collectives } from './collectives';
import type { Columns } from './columns';
import { Row, stack } from './row';

/** The names that parts of a collective's span have. */
export const WAIT = 0;
export const TRANSFER = 1;

/** Spans that are looked at in a step. */
export const STEP = 50_000;

/** The rows of a rank's collectives, each span cut at the last arrival. */
export function* partRows(rank: number, columns: Columns, collectives: Collectives): Generator<void, Row[]> {
  const rows: Row[] = [];
  for (const row of stack(columns)) {
    const room = 2 * row.length;
    const parts = { start: new Float64Array(room), dur: new Float64Array(room), name: new Uint32Array(room), length: 0 };
    const owners = new Uint32Array(room);
    const put = (from: number, to: number, name: number, owner: number): void => {
      const at = parts.length++;
      parts.start[at] = from;
      parts.dur[at] = to - from;
      parts.name[at] = name;
      owners[at] = owner;
    };
    for (let i = 0; i < row.length; i++) {
      const [place, start, end] = [row.place(i), row.start(i), row.end(i)];
      const one = collectives.of(rank, place);
      const cut = one < 0 ? start : collectives.waitedUntil(one, rank, start, end);
      if (cut > start) {
        put(start, cut, WAIT, place);
      }
      if (end > cut || cut === start) {
        put(cut, end, TRANSFER, place);
      }
      if (i % STEP === 0) {
        yield;
      }
    }
    rows.push(new Row(parts, null, owners));
  }
  return rows;
}
