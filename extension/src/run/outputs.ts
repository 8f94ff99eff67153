/** Rich outputs and results of the ranks, as they are shown: equal ones once. */
import type { DisplayEvent } from '../schema';

export interface Output {
  rank: number;
  isResult: boolean;
  data: { [mime: string]: unknown };
  metadata: { [key: string]: unknown };
  /** Equal for equal data. */
  key: string;
}

/** An output, and all ranks with an equal one. */
export interface SameOutput extends Output {
  ranks: number[];
}

interface Kept extends Output {
  displayId?: string;
  weight: number;
}

export class Outputs {
  /** Increases whenever what is shown changes. */
  version = 0;
  /** The approximate number of characters of all outputs. */
  weight = 0;
  private items: Kept[] = [];
  private clearNext = new Set<number>();

  add(event: DisplayEvent): void {
    const { rank } = event;
    if (event.clear === 'now') {
      this.clear(rank);
    } else if (event.clear === 'next') {
      this.clearNext.add(rank);
    }
    if (Object.keys(event.data).length === 0) {
      return;
    }
    const output: Kept = {
      rank,
      isResult: event.result === true,
      data: event.data,
      metadata: event.metadata ?? {},
      key: keyOf(event),
      displayId: event.display_id,
      weight: weightOf(event.data)
    };
    if (event.update) {
      this.update(output);
      return;
    }
    if (this.clearNext.delete(rank)) {
      this.clear(rank);
    }
    this.items.push(output);
    this.weight += output.weight;
    this.version += 1;
  }

  get length(): number {
    return this.items.length;
  }

  /** Return the outputs of `ranks` in order, results last; if `collapsed`, equal ones of several ranks are merged. */
  grouped(ranks: ReadonlySet<number> | null, collapsed: boolean): SameOutput[] {
    const groups: SameOutput[] = [];
    const byKey = new Map<string, SameOutput[]>();
    const firsts = new Map<string, number>(); // by rank and key: how many of the key's groups the rank is in
    for (const output of this.items) {
      if (ranks && !ranks.has(output.rank)) {
        continue;
      }
      const same = byKey.get(output.key) ?? [];
      // A rank's n-th output with a key joins the n-th group with that key.
      const place = collapsed ? `${output.rank}:${output.key}` : output.key;
      const nth = firsts.get(place) ?? 0;
      firsts.set(place, nth + 1);
      if (nth < same.length) {
        same[nth].ranks.push(output.rank);
      } else {
        const own = { ...output, ranks: [output.rank] };
        groups.push(own);
        same.push(own);
        byKey.set(output.key, same);
      }
    }
    groups.forEach(group => group.ranks.sort((a, b) => a - b));
    // Ranks finish in any order, but users compare their results: show them in the order of ranks.
    const results = groups.filter(group => group.isResult).sort((a, b) => a.ranks[0] - b.ranks[0]);
    return [...groups.filter(group => !group.isResult), ...results];
  }

  private clear(rank: number): void {
    this.items = this.items.filter(item => item.rank !== rank);
    this.clearNext.delete(rank);
    this.weigh();
    this.version += 1;
  }

  private weigh(): void {
    this.weight = this.items.reduce((sum, item) => sum + item.weight, 0);
  }

  private update(output: Kept): void {
    this.items = this.items.map(item =>
      item.rank === output.rank && item.displayId === output.displayId && item.displayId !== undefined
        ? { ...output, isResult: item.isResult }
        : item
    );
    this.weigh();
    this.version += 1;
  }
}

/** Return the number of characters of an output: a figure may be JSON of megabytes. */
function weightOf(data: Output['data']): number {
  const texts = Object.values(data).map(value => (typeof value === 'string' ? value : (JSON.stringify(value) ?? '')));
  return texts.reduce((sum, text) => sum + text.length, 0);
}

function keyOf(event: DisplayEvent): string {
  const text = JSON.stringify(event.data);
  let hash = 0;
  for (let i = 0; i < text.length; i++) {
    hash = (Math.imul(hash, 31) + text.charCodeAt(i)) | 0;
  }
  // A figure may take megabytes: two with the same length and hash are considered equal.
  return `${event.result ? 'result' : 'display'}:${text.length < 1_000 ? text : `${text.length}:${hash}`}`;
}
