/** The confirmation before variables are lost. */
import { Dialog, showDialog } from '@jupyterlab/apputils';

import type { Act } from '../api/clusters';
import type { ClusterStatus } from '../cluster_status';
import { question } from './phrases';

/** Return whether the user confirms an action; true if it needs no confirmation. */
export async function isMeant(card: ClusterStatus, act: Act, ranks: string): Promise<boolean> {
  const asked = question(card, act, ranks);
  if (!asked) {
    return true;
  }
  const [title, body, label] = asked;
  const { button } = await showDialog({ title, body, buttons: [Dialog.cancelButton(), Dialog.warnButton({ label })] });
  return button.accept;
}
