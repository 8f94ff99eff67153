/** Why a run is stuck, rank by rank, in words. */
import type { Hang, Standing } from '../schema';
import { trans } from '../translation';

/** Ranks that stand at the same place. */
export interface Place {
  ranks: number[];
  /** `waits in allreduce grad.3 · cell line 7` */
  words: string;
  /** The source of that line; '' if it is not known. */
  code: string;
}

/** The places where ranks stand, in the order in which the first of them come. */
export function places(hang: Hang): Place[] {
  const found = new Map<string, { first: Standing; ranks: number[] }>();
  for (const each of hang.ranks) {
    const key = JSON.stringify([each.state, each.what, each.cell_line, each.code]);
    const place = found.get(key) ?? { first: each, ranks: [] };
    place.ranks.push(each.rank);
    found.set(key, place);
  }
  return [...found.values()].map(({ first, ranks }) => ({
    ranks: ranks.sort((a, b) => a - b),
    words: wordsFor(first, ranks.length),
    code: first.code ?? ''
  }));
}

/** The ranks that keep others from going on, ascending: restarting them would help. */
export function awaited(hang: Hang): number[] {
  const isHeldUp = hang.ranks.some(({ state }) => state === 'waits' || state === 'ended');
  return hang.ranks
    .filter(({ state }) => state === 'silent' || (isHeldUp && (state === 'still' || state === 'busy')))
    .map(({ rank }) => rank)
    .sort((a, b) => a - b);
}

/** Ranks whose stacks read the same, in the order of the first of them. */
export function alikeStacks(stacks: ReadonlyMap<number, string>): Array<[number[], string]> {
  const found = new Map<string, number[]>();
  for (const [rank, text] of [...stacks].sort(([a], [b]) => a - b)) {
    found.set(text, [...(found.get(text) ?? []), rank]);
  }
  return [...found].map(([text, ranks]) => [ranks, text]);
}

function wordsFor(standing: Standing, ranks: number): string {
  const { state, what, cell_line: line } = standing;
  const words = [doing(standing, ranks)];
  if (state !== 'waits' && what) {
    words.push(what);
  }
  if (line) {
    words.push(trans.__('cell line %1', line));
  }
  return words.join(' · ');
}

/** What one rank does, or several. */
function doing({ state, what }: Standing, ranks: number): string {
  switch (state) {
    case 'waits':
      return typeof what === 'string'
        ? trans._n('waits in %2', 'wait in %2', ranks, what)
        : trans._n('waits in a collective', 'wait in a collective', ranks);
    case 'still':
      return trans._n('stands still', 'stand still', ranks);
    case 'busy':
      return trans._n('is at work', 'are at work', ranks);
    case 'ended':
      return trans._n('has finished the cell', 'have finished the cell', ranks);
    case 'silent':
      return trans._n('does not answer', 'do not answer', ranks);
    default:
      return trans._n('stands', 'stand', ranks);
  }
}
