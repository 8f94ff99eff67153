/** The Ranks sidebar in JupyterLab; Notebook 7 has no place for it and goes without. */
import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';

import type { ClustersApi } from '../api/clusters';
import { IRankroom } from '../rankroom';
import { OPEN, sayWhy } from '../view/panel';
import type { CardActions } from './card';
import { addCommands } from './commands';
import { isMeant } from './dialogs';
import { insertAttachCell } from './insert';
import { logPanel } from './logpanel';
import { Notices } from './notices';
import { RanksPanel } from './panel';
import { Questions } from './questions';
import { StatusItem } from './status';

const ID = 'rankroom:ranks';
/** Below the file browser and the running kernels. */
const PLACE = 250;
const TICK_MS = 1_000;

export const ranks: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'The Ranks sidebar: clusters, their ranks, and the newest runs.',
  autoStart: true,
  requires: [IRankroom],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette, ILauncher, IStatusBar, INotebookTracker, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd,
    { api, clusters }: IRankroom,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    statusBar: IStatusBar | null,
    notebooks: INotebookTracker | null,
    settings: ISettingRegistry | null
  ) => {
    if (!labShell) {
      return;
    }
    clusters.watch();
    const actions: CardActions = {
      act: async (card, act, text = '') => {
        if (await isMeant(card, act, text)) {
          // A site allocates whole nodes.
          const option = act === 'resize' && card.is_remote ? 'nodes' : 'ranks';
          await clusters.act(card, act, text ? { [option]: text } : {});
        }
      },
      openLog: card => openLog(app, clusters.api, card.name),
      insertCell: card => void insertAttachCell(notebooks, card.name)
    };
    let site = 'local';
    const panel = new RanksPanel(clusters, {
      ...actions,
      openRun: run => void app.commands.execute(OPEN, { id: run.id }).catch(sayWhy),
      defaultSite: () => site
    });
    labShell.add(panel, 'left', { rank: PLACE, type: 'Ranks' });
    restorer?.add(panel, panel.id);
    const show = (): void => labShell.activateById(panel.id);
    const places = {
      show,
      openForm: () => (show(), panel.openForm()),
      startHere: () => (show(), void panel.startHere())
    };
    addCommands(app, api, clusters, actions, places, palette, launcher);

    const notices = new Notices(clusters, show);
    const status = new StatusItem(clusters, show);
    new Questions(clusters);
    const ticking = setInterval(() => (notices.tick(), status.tick()), TICK_MS);
    panel.disposed.connect(() => clearInterval(ticking));
    statusBar?.registerStatusItem(ID, {
      item: status,
      align: 'left',
      rank: 3,
      isActive: () => status.isActive,
      activeStateChanged: status.activeStateChanged
    });

    void settings?.load(ID).then(loaded => {
      const read = (): void => {
        clusters.setInterval(loaded.get('interval').composite as number);
        notices.isOn = loaded.get('warnings').composite as boolean;
        site = loaded.get('site').composite as string;
      };
      loaded.changed.connect(read);
      read();
    });
  }
};

function openLog(app: JupyterFrontEnd, api: ClustersApi, cluster: string): void {
  const there = [...app.shell.widgets('main')].find(widget => widget.id === `rankroom-log-${cluster}`);
  const panel = there ?? logPanel(api, cluster);
  if (!there) {
    app.shell.add(panel, 'main', { mode: 'split-bottom' });
  }
  app.shell.activateById(panel.id);
}
