/** A run that the teacher shows, in a panel: a read-only view of the teacher's record. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget, Notification } from '@jupyterlab/apputils';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';

import type { Api } from '../api';
import { Runs } from '../run/runs';
import { message } from '../sidebar/clusters';
import { trans } from '../translation';
import { RunView } from '../view/runview';

export class ShownRuns {
  private runs: Runs;
  /** Runs whose panels are being created, so that a second click does not create another one. */
  private making = new Set<string>();

  /** `api` uses the routes of the runs that the teacher shows. */
  constructor(
    private app: JupyterFrontEnd,
    private api: Api,
    private rendermime: IRenderMimeRegistry
  ) {
    this.runs = new Runs(api);
  }

  async open(id: string): Promise<void> {
    const { shell } = this.app;
    const panelId = `rankroom-shown-${id}`;
    if (this.making.has(id)) {
      return; // the click before this one creates it
    }
    if (![...shell.widgets('main')].some(widget => widget.id === panelId)) {
      this.making.add(id);
      try {
        shell.add(await this.make(id, panelId), 'main', { mode: 'split-right' });
      } catch (error) {
        Notification.error(trans.__('The run cannot be shown: %1', message(error)));
        return;
      } finally {
        this.making.delete(id);
      }
    }
    shell.activateById(panelId);
  }

  private async make(id: string, panelId: string): Promise<MainAreaWidget<RunView>> {
    const { api, runs, rendermime } = this;
    const run = await api.run(id);
    // Output of another user's ranks may contain scripts, which must not run here.
    const content = new RunView({ api, runs, rendermime, run, isTrusted: false, isInline: false, open: null, fallback: null });
    content.addClass('rr-shown');
    const panel = new MainAreaWidget({ content });
    panel.id = panelId;
    panel.title.label = trans.__('Shown: %1', run.name || run.title || run.id);
    panel.title.closable = true;
    return panel;
  }
}
