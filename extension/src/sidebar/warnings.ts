/** Warnings that a cluster's time is nearly over, once for each limit. */
import type { ClusterStatus } from '../cluster_status';
import { trans } from '../translation';
import { isOver, secondsLeft } from './phrases';

/** Seconds before the end, the most urgent first. */
const LIMITS = [120, 600];

export interface Warning {
  cluster: string;
  /** The limit that was reached, in seconds. */
  limit: number;
  text: string;
}

export class Warnings {
  /** The most urgent limit already warned of, by cluster and end time. */
  private told = new Map<string, number>();

  /** Return the warnings that are due now. */
  due(cards: readonly ClusterStatus[], now: number): Warning[] {
    const found: Warning[] = [];
    for (const card of cards) {
      const left = secondsLeft(card, now);
      const limit = left === null ? undefined : LIMITS.find(each => left <= each);
      // A resized cluster of the same name has another end time.
      const key = `${card.name} ${card.until}`;
      if (limit === undefined || left === 0 || (this.told.get(key) ?? Infinity) <= limit) {
        continue;
      }
      this.told.set(key, limit);
      found.push({ cluster: card.name, limit, text: sentence(card.name, left ?? 0) });
    }
    return found;
  }
}

/** Whether a warning of this limit still holds: its cluster may have ended by now, or have been given more time. */
export function holds(card: ClusterStatus | undefined, limit: number, now: number): boolean {
  return card !== undefined && !isOver(card) && card.until > 0 && card.until - now <= limit;
}

function sentence(name: string, left: number): string {
  if (left < 50) {
    return trans.__('%1: less than a minute left, then its job ends with all ranks and their variables. Save what you need.', name);
  }
  return trans._n(
    '%2: %1 minute left, then its job ends with all ranks and their variables. Save what you need.',
    '%2: %1 minutes left, then its job ends with all ranks and their variables. Save what you need.',
    Math.max(1, Math.round(left / 60)),
    name
  );
}
