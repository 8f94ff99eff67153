/** Collectives for painting: each span split into its wait and its transfer. */
import type { Collectives } from './collectives';
import type { Columns } from './columns';
import { Row, stack } from './row';

/** The name numbers of the parts of a collective's span. */
export const WAIT = 0;
export const TRANSFER = 1;

/** Spans processed per step. */
export const STEP = 50_000;

/** Return the rows of a rank's collectives, with each span cut where its wait ends. */
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
