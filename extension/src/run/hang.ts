/** What is to be known of a run that is stuck, beside what its record says. */
import type { Hang } from '../schema';

/** The ranks that keep others from going on, ascending: restarting them would help. */
export function awaited({ places = [] }: Hang): number[] {
  const isHeldUp = places.some(({ state }) => state === 'waits' || state === 'ended');
  return places
    .filter(({ state }) => state === 'silent' || (isHeldUp && (state === 'still' || state === 'busy')))
    .flatMap(({ ranks }) => ranks)
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
