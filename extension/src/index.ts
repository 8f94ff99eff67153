/** Rankroom in JupyterLab and Notebook 7: a run's view under its cell and in a panel; the Ranks sidebar; workshops. */
import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';

import { IRankroom, rankroom } from './rankroom';
import { tabMemories } from './run/memories';
import { Runs } from './run/runs';
import { ranks } from './sidebar/plugin';
import { addPanels } from './view/panel';
import { MIME, RunRenderer } from './view/renderer';
import { workshop } from './workshop/plugin';

/** Preferred to text/html, whose rank is about 50. */
const RANK = 0;

const runView: JupyterFrontEndPlugin<void> = {
  id: 'rankroom:run-view',
  description: 'Shows each rank’s log under a distributed cell.',
  autoStart: true,
  requires: [IRenderMimeRegistry, IRankroom],
  optional: [ILabShell, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    rendermime: IRenderMimeRegistry,
    { api }: IRankroom,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null
  ) => {
    const parts = { api, runs: new Runs(api, tabMemories()), rendermime };
    // Notebook 7 has a single main area, and the notebook takes it.
    const open = labShell ? addPanels(app, parts, restorer) : null;
    rendermime.addFactory(
      {
        safe: true,
        mimeTypes: [MIME],
        // A notebook's own resolver finds the files that ranks' rich outputs name.
        createRenderer: ({ resolver }) =>
          new RunRenderer({ ...parts, open, rendermime: resolver ? rendermime.clone({ resolver }) : rendermime })
      },
      RANK
    );
  }
};

export { IRankroom };
export default [rankroom, runView, ranks, workshop];
