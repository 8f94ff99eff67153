/** Notifications of JupyterLab when a cluster's time is nearly over. */
import { Notification } from '@jupyterlab/apputils';

import { trans } from '../translation';
import type { Clusters } from './clusters';
import { Warnings } from './warnings';

export class Notices {
  isOn = true;
  private warnings = new Warnings();
  private shown = new Map<string, string>();

  constructor(
    private clusters: Clusters,
    private open: () => void
  ) {
    clusters.changed.connect(this.tick, this);
  }

  tick(): void {
    if (!this.isOn) {
      return;
    }
    const { all, now } = this.clusters;
    for (const { cluster, limit, text } of this.warnings.due(all, now)) {
      this.dismiss(cluster);
      const actions = [{ label: trans.__('Show ranks'), callback: this.open }];
      const options = { autoClose: false as const, actions };
      const id = limit < 600 ? Notification.error(text, options) : Notification.warning(text, options);
      this.shown.set(cluster, id);
    }
    const there = new Set(all.map(({ name }) => name));
    [...this.shown.keys()].filter(name => !there.has(name)).forEach(name => this.dismiss(name));
  }

  private dismiss(cluster: string): void {
    const id = this.shown.get(cluster);
    if (id !== undefined) {
      Notification.dismiss(id);
      this.shown.delete(cluster);
    }
  }
}
