/** What can be concluded about a stuck run from its record and its ranks' stacks. */
import type { Hang } from '../schema';

/** Return the ranks that block the others, ascending: those whose restart would help. */
export function awaited({ places = [] }: Hang): number[] {
  const isHeldUp = places.some(({ state }) => state === 'waits' || state === 'ended');
  return places
    .filter(({ state }) => state === 'silent' || (isHeldUp && (state === 'still' || state === 'busy')))
    .flatMap(({ ranks }) => ranks)
    .sort((a, b) => a - b);
}

/** Group ranks with equal stacks, in the order of each group's first rank. */
export function alikeStacks(stacks: ReadonlyMap<number, string>): Array<[number[], string]> {
  const found = new Map<string, number[]>();
  for (const [rank, text] of [...stacks].sort(([a], [b]) => a - b)) {
    found.set(text, [...(found.get(text) ?? []), rank]);
  }
  return [...found].map(([text, ranks]) => [ranks, text]);
}
