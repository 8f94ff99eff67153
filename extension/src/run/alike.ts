/** Errors of several ranks that are described alike. */
import type { ErrorEvent } from '../schema';

export interface AlikeErrors {
  /** Identifies the group, also when more errors join it. */
  key: string;
  words: string;
  /** The first of them. */
  error: ErrorEvent;
  /** Ascending, each once. */
  ranks: number[];
}

/** Group the errors with the same words and the same line of the cell. */
export function alike(errors: readonly ErrorEvent[], wordsOf: (error: ErrorEvent) => string): AlikeErrors[] {
  const groups = new Map<string, { words: string; error: ErrorEvent; ranks: Set<number> }>();
  for (const error of errors) {
    const words = wordsOf(error);
    const key = JSON.stringify([words, error.cell_line ?? null]);
    const group = groups.get(key) ?? { words, error, ranks: new Set<number>() };
    group.ranks.add(error.rank);
    groups.set(key, group);
  }
  return [...groups].map(([key, { words, error, ranks }]) => ({ key, words, error, ranks: [...ranks].sort((a, b) => a - b) }));
}
