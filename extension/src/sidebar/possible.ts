/** What can be done to a cluster as it stands: the same on its card, in menus and in the palette. */
import type { Act } from '../api/clusters';
import type { ClusterStatus } from '../cluster_status';
import type { Clusters } from './clusters';
import { isLive, isOver, isUnreadable } from './phrases';

export const DOINGS = ['insert', 'interrupt', 'log', 'restart', 'resize', 'stop'] as const;
export type Doing = (typeof DOINGS)[number];

/** Whether it makes sense for such a cluster. */
export function isOffered(card: ClusterStatus, what: Doing): boolean {
  switch (what) {
    case 'insert':
    case 'interrupt':
      return isLive(card);
    case 'log':
      return isLive(card) || isOver(card) || card.state === 'ending';
    case 'restart':
      return isLive(card) || isOver(card);
    case 'resize':
      return isLive(card) && card.is_supervised;
    case 'stop':
      return !isUnreadable(card);
  }
}

/** Whether it can be done now: `under` is what is being done already, which all but a cell and the log wait for. */
export function isPossible(card: ClusterStatus, what: Doing, under: Act | null): boolean {
  const mayWait = what !== 'insert' && what !== 'log';
  return isOffered(card, what) && !(mayWait && (under !== null || card.state === 'ending'));
}

/**
 * Call `tell` when what commands say or allow has changed, and not with every answer of the server: each time, the
 * palette forgets which command is selected.
 */
export function whenPossibleChanges(clusters: Clusters, tell: () => void): void {
  let told = '';
  clusters.changed.connect(() => {
    const cards = clusters.all.map(card => {
      const possible = DOINGS.filter(what => isPossible(card, what, clusters.actOn(card)));
      return [card.name, isLive(card), card.is_supervised, possible];
    });
    const going = clusters.runs.filter(run => run.state === 'running').map(run => run.id);
    const now = JSON.stringify([cards, going]);
    if (now !== told) {
      told = now;
      tell();
    }
  });
}
