/** Rich outputs and results of the ranks: what is to be shown of them, equal ones once. */
import type { DisplayEvent } from '../schema';

export interface Output {
  rank: number;
  isResult: boolean;
  data: { [mime: string]: unknown };
  metadata: { [key: string]: unknown };
  /** Equal for equal data. */
  key: string;
}

/** An output, and all ranks that have the same. */
export interface SameOutput extends Output {
  ranks: number[];
}

interface Kept extends Output {
  displayId?: string;
}

export class Outputs {
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
      displayId: event.display_id
    };
    if (event.update) {
      this.update(output);
      return;
    }
    if (this.clearNext.delete(rank)) {
      this.clear(rank);
    }
    this.items.push(output);
  }

  get length(): number {
    return this.items.length;
  }

  /** All outputs in order, results last; equal ones of several ranks once, or each by itself. */
  grouped(ranks: ReadonlySet<number> | null, collapsed: boolean): SameOutput[] {
    const groups: SameOutput[] = [];
    const byKey = new Map<string, SameOutput[]>();
    for (const output of this.items) {
      if (ranks && !ranks.has(output.rank)) {
        continue;
      }
      const same = byKey.get(output.key) ?? [];
      const group = collapsed ? same.find(other => !other.ranks.includes(output.rank)) : undefined;
      if (group) {
        group.ranks.push(output.rank);
      } else {
        const own = { ...output, ranks: [output.rank] };
        groups.push(own);
        byKey.set(output.key, [...same, own]);
      }
    }
    groups.forEach(group => group.ranks.sort((a, b) => a - b));
    // Ranks finish in any order; their values are compared, and so stand in the order of ranks.
    const results = groups.filter(group => group.isResult).sort((a, b) => a.ranks[0] - b.ranks[0]);
    return [...groups.filter(group => !group.isResult), ...results];
  }

  private clear(rank: number): void {
    this.items = this.items.filter(item => item.rank !== rank);
    this.clearNext.delete(rank);
  }

  private update(output: Kept): void {
    this.items = this.items.map(item =>
      item.rank === output.rank && item.displayId === output.displayId && item.displayId !== undefined
        ? { ...output, isResult: item.isResult }
        : item
    );
  }
}

function keyOf(event: DisplayEvent): string {
  const text = JSON.stringify(event.data);
  let hash = 0;
  for (let i = 0; i < text.length; i++) {
    hash = (Math.imul(hash, 31) + text.charCodeAt(i)) | 0;
  }
  // A figure may take megabytes: two of the same length and hash are taken for the same.
  return `${event.result ? 'result' : 'display'}:${text.length < 1_000 ? text : `${text.length}:${hash}`}`;
}
