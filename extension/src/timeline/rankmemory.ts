/** The memory of each rank over a run: its peak, and whether it keeps rising. */
import { nameRanks } from '../ranks';
import type { Loop, RankMemory } from '../schema';
import { trans } from '../translation';
import { size } from './amounts';
import { stepsOf } from './phases';
import type { Column, Table } from './tables';

/** A rise is mentioned if it is at least LEAST_RISE bytes and 1/SHARE of the peak, as in rank_memory.py. */
const LEAST_RISE = 32_000_000;
const SHARE = 20;

export function memoryTable(rows: readonly RankMemory[]): Table<RankMemory> {
  const bytes = (key: 'first' | 'last' | 'peak' | 'rise' | 'gpu_peak', head: string, title: string): Column<RankMemory> => ({
    key, head, title, unit: 'B',
    value: row => row[key],
    cell: row => written(row[key])
  });
  return {
    rows,
    columns: [
      { key: 'rank', head: trans.__('rank'), title: trans.__('the rank'), value: row => row.rank, cell: row => String(row.rank) },
      bytes('first', trans.__('at start'), trans.__('when the rank was sampled first, with its child processes')),
      bytes('last', trans.__('at end'), trans.__('when the rank was sampled last')),
      bytes('peak', trans.__('peak'), trans.__('the maximum of all samples (about one per second)')),
      bytes('rise', trans.__('rise'), trans.__('how far it rose throughout the loop, or the run; 0 if it did not rise all the time')),
      ...(rows.some(row => row.gpu_peak !== null)
        ? [bytes('gpu_peak', trans.__('peak of its GPU'), trans.__('of the whole GPU, with what other processes use'))]
        : [])
    ]
  };
}

/** Say `peak memory 1.2 GB to 1.4 GB per rank`, and which ranks' memory keeps rising. */
export function memoryFacts(rows: readonly RankMemory[], loop: Loop | undefined): string[] {
  if (rows.length === 0) {
    return [];
  }
  const gpus = rows.flatMap(row => row.gpu_peak ?? []);
  const rising = rows.filter(({ rise, peak }) => (rise ?? 0) >= Math.max(LEAST_RISE, Math.floor(peak / SHARE)));
  const most = rising.reduce<RankMemory | null>((a, b) => (a && (a.rise ?? 0) >= (b.rise ?? 0) ? a : b), null);
  return [
    trans.__('peak memory %1 per rank', between(rows.map(({ peak }) => peak))),
    gpus.length ? trans.__('%1 on its GPU', between(gpus)) : '',
    most
      ? trans.__(
          'memory of %1 rises throughout %2, by %3 on %4',
          nameRanks(rising.map(({ rank }) => rank)), loop ? stepsOf(loop) : trans.__('the run'), written(most.rise), nameRanks([most.rank])
        )
      : ''
  ].filter(Boolean);
}

function between(sizes: readonly number[]): string {
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)].map(size);
  return least === most ? most : trans.__('%1 to %2', least, most);
}

function written(bytes: number | null): string {
  return bytes === null ? '–' : size(bytes);
}
