/** A profile as tables: their columns, sorting, and conversion to text and CSV. */
import type { Kind, Profile, RankTimes, Straggler } from '../schema';
import { trans } from '../translation';
import { percent, scaleFor, size, type Scale } from './amounts';

type Value = number | string | null;

export interface Column<Row> {
  /** The name that `run.profile()` uses. */
  key: string;
  head: string;
  /** What the column means, in a sentence. */
  title: string;
  value(row: Row): Value;
  /** Return the value as displayed. */
  cell(row: Row): string;
  /** Return the value's share of the whole, where that matters. */
  share?(row: Row): string;
  /** The unit of the values, for other programs. */
  unit?: string;
}

export interface Table<Row> {
  columns: Array<Column<Row>>;
  rows: readonly Row[];
}

/** The rows of a whole run, or of a phase. */
export type ProfileRows = Pick<Profile, 'wall' | 'ranks' | 'kinds' | 'stragglers'>;

export type Part = 'compute' | 'data' | 'waiting' | 'exposed' | 'idle';

/** The parts of a rank's time, each with heading and explanation, in the order in which they are shown. */
export const PARTS = (): ReadonlyArray<[Part, string, string]> => [
  ['compute', trans.__('computing'), trans.__('neither blocked in a collective nor loading data')],
  ['data', trans.__('data loading'), trans.__('in the data loader')],
  ['waiting', trans.__('waiting for others'), trans.__('blocked in a collective until the last rank arrives')],
  ['exposed', trans.__('exposed comm.'), trans.__('communication that nothing overlaps: all ranks have arrived, and the rank is blocked')],
  ['idle', trans.__('idle'), trans.__('the rank has not begun yet or has ended, or Rankroom is setting it up again')]
];

export function rankTable({ ranks, wall }: ProfileRows): Table<RankTimes> {
  const scale = scaleFor(wall);
  const overlapped = (row: RankTimes): number => row.communication - row.exposed;
  return {
    rows: ranks,
    columns: [
      { key: 'rank', head: trans.__('rank'), title: trans.__('the rank'), value: row => row.rank, cell: row => String(row.rank) },
      ...PARTS().map(([part, head, title]) => timed<RankTimes>(part, head, title, row => row[part], scale, wall)),
      timed(
        'overlapped', trans.__('overlapped comm.'), trans.__('communication that overlaps with computing or data loading, and is counted there'),
        overlapped, scale, wall
      )
    ]
  };
}

export function kindTable({ kinds, wall }: ProfileRows): Table<Kind> {
  const scale = scaleFor(Math.max(0, ...kinds.slice(0, 1).map(({ time }) => time)));
  const time = (key: 'time' | 'wait' | 'transfer', head: string, title: string): Column<Kind> =>
    timed(key, head, title, row => row[key], scale, wall);
  return {
    rows: kinds,
    columns: [
      {
        key: 'collective', head: trans.__('collective'), title: trans.__('library and operation'),
        value: row => `${row.library} ${row.op}`.trim(), cell: row => `${row.library} ${row.op}`.trim() || '?'
      },
      counted('calls', trans.__('calls'), trans.__('how many there were, whatever the number of ranks'), row => row.calls),
      {
        key: 'bytes', head: trans.__('bytes'), title: trans.__('what one rank contributes to one call, on average'), unit: 'B',
        value: row => row.bytes, cell: row => (row.bytes === null ? '–' : size(row.bytes))
      },
      time('time', trans.__('time per rank'), trans.__('time in these collectives, the mean of the ranks; what overlaps counts once')),
      time('wait', trans.__('waiting per rank'), trans.__('of that time: until the last rank arrived; the mean of the ranks')),
      time('transfer', trans.__('transfer per rank'), trans.__('of that time: after the last rank arrived; the mean of the ranks')),
      {
        key: 'bandwidth', head: trans.__('bandwidth'), title: trans.__('bytes of a rank’s calls ÷ its transfer'), unit: 'B/s',
        value: row => row.bandwidth,
        cell: row => (row.bandwidth === null ? '–' : `${size(row.bandwidth)}/s`)
      }
    ]
  };
}

export function stragglerTable({ stragglers, wall }: ProfileRows): Table<Straggler> {
  const scale = scaleFor(Math.max(0, ...stragglers.slice(0, 1).map(({ cost }) => cost)));
  return {
    rows: stragglers,
    columns: [
      { key: 'rank', head: trans.__('rank'), title: trans.__('the rank'), value: row => row.rank, cell: row => String(row.rank) },
      {
        ...counted<Straggler>('last', trans.__('arrives last in'), trans.__('collectives at which it arrived last'), row => row.last),
        cell: row => trans.__('%1 of %2', row.last.toLocaleString('en'), row.of.toLocaleString('en')),
        share: row => percent(row.last, row.of)
      },
      timed(
        'cost', trans.__('cost (another rank waits)'),
        trans.__('how long any other rank waited because of it: time of the run, not a mean of the ranks'),
        row => row.cost, scale, wall
      )
    ]
  };
}

/** Return the rows sorted by a column; rows that are equal there keep their order, and null comes last. */
export function sorted<Row>(rows: readonly Row[], { value }: Column<Row>, isDescending: boolean): Row[] {
  const sign = isDescending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === b) {
      return 0;
    }
    return a === null ? 1 : b === null ? -1 : sign * (a < b ? -1 : 1);
  });
}

/** Return the table as text: columns aligned by spaces, with a line under the headings. */
export function asText<Row>({ columns, rows }: Table<Row>): string {
  const heads = columns.map(({ head }) => head);
  const cells = rows.map(row => columns.map(({ cell, share }) => [cell(row), share?.(row).padStart(5)].filter(Boolean).join(' ')));
  const widths = heads.map((head, i) => Math.max(head.length, ...cells.map(row => row[i].length)));
  const line = (row: string[]): string =>
    row.map((cell, i) => (i ? cell.padStart(widths[i]) : cell.padEnd(widths[i]))).join('  ').trimEnd();
  return [line(heads), '─'.repeat(line(widths.map(width => 'x'.repeat(width))).length), ...cells.map(line), ''].join('\n');
}

/** Return the table as CSV for spreadsheets: plain numbers, in one unit per column. */
export function asCsv<Row>({ columns, rows }: Table<Row>): string {
  const lines = [
    columns.map(({ key, unit }) => (unit ? `${key} (${unit})` : key)),
    ...rows.map(row => columns.map(({ value }) => String(value(row) ?? '')))
  ];
  return lines.map(line => line.map(quoted).join(',') + '\n').join('');
}

function timed<Row>(
  key: string,
  head: string,
  title: string,
  value: (row: Row) => number,
  scale: Scale,
  wall: number
): Column<Row> {
  return {
    key, head, title, value, unit: 'µs',
    cell: row => `${scale.text(value(row))} ${scale.unit}`,
    share: row => (wall ? percent(value(row), wall) : '–')
  };
}

function counted<Row>(key: string, head: string, title: string, value: (row: Row) => number): Column<Row> {
  return { key, head, title, value, cell: row => value(row).toLocaleString('en') };
}

/** Quote a CSV cell; one that a spreadsheet would evaluate as a formula gets a leading apostrophe. */
export function quoted(cell: string): string {
  const safe = /^[=+@\t\r]|^-(?![\d.])/.test(cell) ? `'${cell}` : cell;
  return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}
