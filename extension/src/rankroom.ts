/** What the plugins share, and other extensions may use: one connection to the server, and the clusters it reports. */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import { Api } from './api';
import { ClustersApi } from './api/clusters';
import { Clusters } from './sidebar/clusters';
import { translateBy } from './translation';

export interface IRankroom {
  /** Runs by id: what they recorded, and steps for live ones. */
  readonly api: Api;
  /** Clusters, followed once `watch()` is called (signal `changed`); the newest runs, while the sidebar is visible. */
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
    // This plugin is activated before the others, which require it.
    translateBy(translator);
    const api = new Api(app.serviceManager.serverSettings);
    return { api, clusters: new Clusters(new ClustersApi(api)) };
  }
};
