/** When each rank began and ended the cell, from what the ranks and the run's writer said. */
import type { Run, SpansEvent, StatusEvent } from '../schema';
import { FARTHEST } from './spans';

export interface Wall {
  /** Microseconds of the run. */
  begin: number;
  end: number;
  /** Whether any rank said that it began; imported spans come without. */
  isKnown: boolean;
}

export class Stays {
  /** Differs whenever there is more. */
  version = 0;
  /** Times as they were said, and whether on the rank's own clock. */
  private begun = new Map<number, number>();
  private ended = new Map<number, { t: number; isOwn: boolean }>();
  private latest = new Map<number, number>();

  take(event: StatusEvent | SpansEvent): void {
    const { rank, t } = event;
    this.version += 1;
    if (event.kind === 'spans') {
      if (Math.abs(t) <= FARTHEST) {
        this.latest.set(rank, Math.max(this.latest.get(rank) ?? t, t));
      }
    } else if (event.state !== 'running') {
      // A lost rank cannot say so: the run's writer does.
      this.ended.set(rank, { t, isOwn: event.state !== 'lost' });
    } else if (!this.begun.has(rank)) {
      this.begun.set(rank, t);
    }
  }

  /** When the rank began and ended, on the run's clock; null for what it did not. */
  of(rank: number, run: Run): { begin: number | null; end: number | null } {
    const begun = this.begun.get(rank);
    const ended = this.ended.get(rank);
    const offset = offsetOf(rank, run);
    return {
      begin: begun === undefined ? null : begun - offset,
      end: ended === undefined ? null : ended.t - (ended.isOwn ? offset : 0)
    };
  }

  /** From the first beginning to the last end; `spans` are the limits of all spans, if there are any. */
  wall(run: Run, spans: { begin: number; end: number } | null): Wall {
    const stays = run.ranks.map(({ rank }) => this.of(rank, run));
    const begins = stays.flatMap(({ begin }) => (begin === null ? [] : [begin]));
    if (begins.length === 0) {
      return { begin: spans?.begin ?? 0, end: spans?.end ?? 0, isKnown: false };
    }
    const begin = Math.min(...begins);
    const ends = stays.flatMap(({ end }) => (end === null ? [] : [end]));
    if (stays.some(stay => stay.begin !== null && stay.end === null)) {
      ends.push(...begins, ...(spans ? [spans.end] : []));
      run.ranks.forEach(({ rank }) => {
        const latest = this.latest.get(rank);
        if (latest !== undefined) {
          ends.push(latest - offsetOf(rank, run));
        }
      });
    }
    return { begin, end: Math.max(begin, ...ends), isKnown: true };
  }
}

function offsetOf(rank: number, run: Run): number {
  return run.ranks.find(info => info.rank === rank)?.clock?.offset ?? 0;
}
