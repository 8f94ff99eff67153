/** Notifications of JupyterLab when a cluster's time is nearly over. */
import { Notification } from '@jupyterlab/apputils';

import { trans } from '../translation';
import type { Clusters } from './clusters';
import { holds, Warnings } from './warnings';

export class Notices {
  isOn = true;
  private warnings = new Warnings();
  private shown = new Map<string, { id: string; limit: number }>();

  constructor(
    private clusters: Clusters,
    private open: () => void
  ) {
    clusters.changed.connect(this.tick, this);
  }

  tick(): void {
    const { all, now } = this.clusters;
    for (const [name, { limit }] of [...this.shown]) {
      if (!holds(all.find(card => card.name === name), limit, now)) {
        this.dismiss(name);
      }
    }
    if (!this.isOn) {
      return;
    }
    for (const { cluster, limit, text } of this.warnings.due(all, now)) {
      this.dismiss(cluster);
      const actions = [{ label: trans.__('Show ranks'), callback: this.open }];
      const options = { autoClose: false as const, actions };
      const id = limit < 600 ? Notification.error(text, options) : Notification.warning(text, options);
      this.shown.set(cluster, { id, limit });
    }
  }

  private dismiss(cluster: string): void {
    const warning = this.shown.get(cluster);
    if (warning) {
      Notification.dismiss(warning.id);
      this.shown.delete(cluster);
    }
  }
}
