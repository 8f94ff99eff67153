/** What both plugins use, and other extensions may: one connection to the server, and what it knows of clusters. */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import { Api } from './api';
import { ClustersApi } from './api/clusters';
import { Clusters } from './sidebar/clusters';
import { translateBy } from './translation';

export interface IRankroom {
  /** Runs, by their ids: what they recorded, and steps for those that are live. */
  readonly api: Api;
  /** Clusters, told by its signal `changed` once `watch()` was called; and the newest runs, while the sidebar is seen. */
  readonly clusters: Clusters;
}

export const IRankroom = new Token<IRankroom>(
  'rankroom:IRankroom',
  'Clusters of ranks and the runs on them: lists that follow the server, and what can be done to them.'
);

export const rankroom: JupyterFrontEndPlugin<IRankroom> = {
  id: 'rankroom:server',
  description: 'The connection to Rankroom’s routes of the Jupyter server.',
  provides: IRankroom,
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, translator: ITranslator | null) => {
    // Before the other plugins, which need this one.
    translateBy(translator);
    const api = new Api(app.serviceManager.serverSettings);
    return { api, clusters: new Clusters(new ClustersApi(api)) };
  }
};
