/** Why a run is stuck, rank by rank, in words. */
import type { Hang, Standing } from '../schema';

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
    words: wordsFor(first, ranks.length > 1),
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

function wordsFor({ state, what, cell_line: line }: Standing, areMany: boolean): string {
  const [one, many] = WORDS[state] ?? ['stands', 'stand'];
  const words = [areMany ? many : one];
  if (state === 'waits') {
    words[0] += ` in ${what ?? 'a collective'}`;
  } else if (what) {
    words.push(what);
  }
  if (line) {
    words.push(`cell line ${line}`);
  }
  return words.join(' · ');
}

/** For one rank, and for several. */
const WORDS: { [state in Standing['state']]: [string, string] } = {
  waits: ['waits', 'wait'],
  still: ['stands still', 'stand still'],
  busy: ['is at work', 'are at work'],
  ended: ['has finished the cell', 'have finished the cell'],
  silent: ['does not answer', 'do not answer']
};
