/** What is asked before variables go. */
import { Dialog, showDialog } from '@jupyterlab/apputils';

import type { Act } from '../api/clusters';
import type { Card } from '../cards';
import { isOver } from './phrases';

/** Whether the reader really wants it. */
export async function isMeant(card: Card, act: Act, ranks: string): Promise<boolean> {
  const asked = question(card, act, ranks);
  if (!asked) {
    return true;
  }
  const [title, body, label] = asked;
  const { button } = await showDialog({ title, body, buttons: [Dialog.cancelButton(), Dialog.warnButton({ label })] });
  return button.accept;
}

function question(card: Card, act: Act, ranks: string): [string, string, string] | null {
  const all = card.size === 1 ? 'its rank' : `its ${card.size} ranks`;
  if (isOver(card) || act === 'interrupt' || (act === 'restart' && !card.kept)) {
    return null;
  }
  if (act === 'stop' && card.state === 'pending') {
    return [`Cancel the job of ${card.name}?`, `Job ${card.job} loses its place in the queue.`, 'Cancel the job'];
  }
  if (act === 'stop') {
    const job = card.job ? ` and job ${card.job}` : '';
    return [`Stop ${card.name}?`, `This ends ${all}${job}; variables on the ranks are gone then. Records of runs stay.`, 'Stop'];
  }
  if (act === 'resize') {
    return [`Resize ${card.name}?`, `This ends ${all} and ${card.far ? `submits a job for ${ranks} nodes` : `starts ${ranks}`}; variables on the ranks are gone then.`, 'Resize'];
  }
  const isDown = ranks !== '' && card.ranks[Number(ranks)]?.state === 'down';
  if (isDown) {
    return null;
  }
  const who = ranks ? `rank ${ranks}` : all;
  return [`Restart ${who} of ${card.name}?`, `Variables on ${ranks ? 'that rank' : 'the ranks'} are gone then; anything that runs there ends.`, 'Restart'];
}
