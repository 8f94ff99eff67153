/** What is asked before variables go. */
import { Dialog, showDialog } from '@jupyterlab/apputils';

import type { Act } from '../api/clusters';
import type { ClusterStatus } from '../cluster_status';
import { trans } from '../translation';
import { isOver } from './phrases';

/** Whether the reader really wants it. */
export async function isMeant(card: ClusterStatus, act: Act, ranks: string): Promise<boolean> {
  const asked = question(card, act, ranks);
  if (!asked) {
    return true;
  }
  const [title, body, label] = asked;
  const { button } = await showDialog({ title, body, buttons: [Dialog.cancelButton(), Dialog.warnButton({ label })] });
  return button.accept;
}

function question(card: ClusterStatus, act: Act, ranks: string): [string, string, string] | null {
  const { name, size, job } = card;
  if (isOver(card) || act === 'interrupt' || (act === 'restart' && !card.is_supervised)) {
    return null;
  }
  if (act === 'stop' && card.state === 'pending') {
    return [trans.__('Cancel the job of %1?', name), trans.__('Job %1 loses its place in the queue.', job), trans.__('Cancel the job')];
  }
  if (act === 'stop') {
    const body = job
      ? trans._n(
        'This ends its rank and job %2; variables on the ranks are gone then. Records of runs stay.',
        'This ends its %1 ranks and job %2; variables on the ranks are gone then. Records of runs stay.',
        size,
        job
      )
      : trans._n(
        'This ends its rank; variables on the ranks are gone then. Records of runs stay.',
        'This ends its %1 ranks; variables on the ranks are gone then. Records of runs stay.',
        size
      );
    return [trans.__('Stop %1?', name), body, trans.__('Stop')];
  }
  if (act === 'resize') {
    const body = card.is_remote
      ? trans._n(
        'This ends its rank and submits a job for %2 nodes; variables on the ranks are gone then.',
        'This ends its %1 ranks and submits a job for %2 nodes; variables on the ranks are gone then.',
        size,
        ranks
      )
      : trans._n(
        'This ends its rank and starts %2; variables on the ranks are gone then.',
        'This ends its %1 ranks and starts %2; variables on the ranks are gone then.',
        size,
        ranks
      );
    return [trans.__('Resize %1?', name), body, trans.__('Resize')];
  }
  const isDown = ranks !== '' && card.ranks[Number(ranks)]?.state === 'down';
  if (isDown) {
    return null;
  }
  const title = ranks
    ? trans.__('Restart rank %1 of %2?', ranks, name)
    : trans._n('Restart its rank of %2?', 'Restart its %1 ranks of %2?', size, name);
  const body = ranks
    ? trans.__('Variables on that rank are gone then; anything that runs there ends.')
    : trans.__('Variables on the ranks are gone then; anything that runs there ends.');
  return [title, body, trans.__('Restart')];
}
