/** The actions that a cluster allows in its state: the same on its card, in menus and in the palette. */
import type { Act } from '../api/clusters';
import type { ClusterStatus } from '../cluster_status';
import type { Clusters } from './clusters';
import { isLive, isOver, isUnreadable } from './phrases';

export const DOINGS = ['insert', 'interrupt', 'log', 'restart', 'resize', 'stop'] as const;
export type Doing = (typeof DOINGS)[number];

/** Whether an action makes sense for a cluster in this state. */
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

/** Whether an action is possible now. `under` is one in progress, for which all but `insert` and `log` must wait. */
export function isPossible(card: ClusterStatus, what: Doing, under: Act | null): boolean {
  const mayWait = what !== 'insert' && what !== 'log';
  return isOffered(card, what) && !(mayWait && (under !== null || card.state === 'ending'));
}

/**
 * Call `tell` when the labels or the availability of commands have changed, not at every reply of the server: each call
 * makes the palette forget which command is selected.
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
