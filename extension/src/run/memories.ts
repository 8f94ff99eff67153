/** How a reader looks at the runs that are shown, which is kept while the page is loaded again. */
import { UNFILTERED, type TypedFilter } from '../log/typedfilter';
import { Choice } from '../metrics/choice';
import { Look } from '../timeline/look';

/** The parts of a run's view. */
export const TABS = ['logs', 'metrics', 'timeline', 'profile'] as const;
export type Tab = (typeof TABS)[number];

export interface Memory {
  tab: Tab;
  filter: TypedFilter;
  look: Look;
  /** Of the metrics. */
  choice: Choice;
}

interface SavedMemory {
  tab: Tab;
  filter: TypedFilter;
  look: ReturnType<Look['toJSON']>;
  choice: ReturnType<Choice['toJSON']>;
}

const KEY = 'rankroom:views';
/** So many places are kept, those that were made last. */
const MOST = 200;

export class Memories {
  private memories = new Map<string, Memory>();
  /** Of places that are not there yet, since the page was loaded. */
  private saved: Map<string, SavedMemory>;

  /** `storage` is what outlives the page; null for nothing. */
  constructor(private storage: Pick<Storage, 'getItem' | 'setItem'> | null = null) {
    this.saved = read(storage);
  }

  /** What a place where a run is shown remembers of it, though its views come and go. */
  at(id: string, place: string): Memory {
    const key = `${place} ${id}`;
    let memory = this.memories.get(key);
    if (!memory) {
      const saved = this.saved.get(key);
      const look = new Look(saved?.look);
      const choice = new Choice(look, saved?.choice);
      memory = { tab: saved?.tab ?? 'logs', filter: { ...UNFILTERED, ...saved?.filter }, look, choice };
      this.saved.delete(key);
      this.memories.set(key, memory);
    }
    return memory;
  }

  save(): void {
    try {
      this.storage?.setItem(KEY, JSON.stringify([...this.saved, ...this.memories].slice(-MOST)));
    } catch (error) {
      console.warn('How runs are looked at cannot be kept:', error);
    }
  }
}

function read(storage: Pick<Storage, 'getItem'> | null): Map<string, SavedMemory> {
  try {
    return new Map(JSON.parse(storage?.getItem(KEY) ?? '[]') as Array<[string, SavedMemory]>);
  } catch {
    return new Map(); // what is there is not ours
  }
}

/** Those of the browser's tab; where it keeps nothing, of the page. */
export function tabMemories(): Memories {
  let storage: Storage | null = null;
  try {
    storage = window.sessionStorage;
  } catch {
    // The browser forbids it.
  }
  const memories = new Memories(storage);
  window.addEventListener('pagehide', () => memories.save());
  return memories;
}
