/** Which lines to show, as the user has chosen and typed it. */
import { textFilter } from './textfilter';
import type { Filter } from './rows';

export interface TypedFilter {
  /** Null stands for all. */
  ranks: readonly number[] | null;
  text: string;
  collapsed: boolean;
  byNumbers: boolean;
}

export const UNFILTERED: TypedFilter = { ranks: null, text: '', collapsed: true, byNumbers: false };

/** Return the filter; a text that is an invalid regular expression is ignored. */
export function filterOf({ ranks, text, collapsed, byNumbers }: TypedFilter): Filter {
  const test = textFilter(text);
  return { ranks: ranks && new Set(ranks), text: typeof test === 'string' ? null : test, collapsed, byNumbers };
}
