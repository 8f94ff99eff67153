/** The view state of each run that is shown, kept when the page is reloaded. */
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
  /** What is chosen in the Metrics tab. */
  choice: Choice;
}

interface SavedMemory {
  tab: Tab;
  filter: TypedFilter;
  look: ReturnType<Look['toJSON']>;
  choice: ReturnType<Choice['toJSON']>;
}

const KEY = 'rankroom:views';
/** View states that are stored at most: the newest. */
const MOST = 200;

export class Memories {
  private memories = new Map<string, Memory>();
  /** View states from storage that no view has used since the page was loaded. */
  private saved: Map<string, SavedMemory>;

  /** `storage` outlives the page; with null, nothing does. */
  constructor(private storage: Pick<Storage, 'getItem' | 'setItem'> | null = null) {
    this.saved = read(storage);
  }

  /** Return the view state of a run at one place, such as a panel; it outlives the views there. */
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
      console.warn('Cannot save the view state of runs:', error);
    }
  }
}

function read(storage: Pick<Storage, 'getItem'> | null): Map<string, SavedMemory> {
  try {
    return new Map(JSON.parse(storage?.getItem(KEY) ?? '[]') as Array<[string, SavedMemory]>);
  } catch {
    return new Map(); // what is stored is not ours
  }
}

/** Return the memories of the browser's tab, or only of the page if the browser stores nothing. */
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
