/** Workshops in JupyterLab: the teacher's console, and for a learner a panel and an item in the status bar. */
import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { IStatusBar } from '@jupyterlab/statusbar';

import type { Api } from '../api';
import { WorkshopApi } from '../api/workshop';
import { IRankroom } from '../rankroom';
import type { Clusters } from '../sidebar/clusters';
import { trans } from '../translation';
import { Console } from './console';
import { ConsolePanel } from './consolepanel';
import { boardIcon } from './icon';
import { Offers } from './offers';
import { firstAnswer, Seat } from './seat';
import { SeatNotices } from './seatnotices';
import { SeatPanel } from './seatpanel';
import { SeatStatus } from './seatstatus';
import { ShownRuns } from './shownrun';

const ID = 'rankroom:workshop';
export const CONSOLE = 'rankroom:workshop-console';
const PANEL = 'rankroom:workshop-panel';
const HAND = 'rankroom:workshop-hand';
/** Runs from which a teacher can choose. */
const RUNS = 30;
/** Below the Ranks sidebar. */
const PLACE = 260;

export const workshop: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'Workshops: a teacher’s console, and a learner’s panel where the server is a seat.',
  autoStart: true,
  requires: [IRankroom, IRenderMimeRegistry],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette, IStatusBar, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    { api, clusters }: IRankroom,
    rendermime: IRenderMimeRegistry,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    statusBar: IStatusBar | null,
    notebooks: INotebookTracker | null
  ) => {
    if (!labShell) {
      return;
    }
    addConsole(app, api, clusters, notebooks, restorer);
    palette?.addItem({ command: CONSOLE, category: trans.__('Workshop') });
    void addSeat(app, api, clusters, rendermime, notebooks, statusBar, labShell).then(isSeat => {
      if (isSeat) {
        [PANEL, HAND].forEach(command => palette?.addItem({ command, category: trans.__('Workshop') }));
      }
    });
  }
};

/** Add the command that opens a workshop's console, with an optional `folder`; the console survives a reload. */
function addConsole(
  app: JupyterFrontEnd, api: Api, clusters: Clusters, notebooks: INotebookTracker | null, restorer: ILayoutRestorer | null
): void {
  const tracker = new WidgetTracker<MainAreaWidget<ConsolePanel>>({ namespace: 'rankroom-workshop' });
  const parts = {
    activeCell: () => notebooks?.activeCell?.model.sharedModel.getSource() ?? null,
    runs: () => clusters.api.runs(RUNS)
  };
  app.commands.addCommand(CONSOLE, {
    label: trans.__('Workshop Console'),
    caption: trans.__('see how your workshop’s learners are doing'),
    icon: boardIcon,
    execute: async args => {
      const folder = String(args.folder ?? '');
      const there = tracker.find(() => true);
      const panel = there ?? consolePanel(new ConsolePanel(new Console(new WorkshopApi(api), folder), parts));
      if (!there) {
        app.shell.add(panel, 'main');
        panel.content.folderChanged.connect(() => void tracker.save(panel));
        await tracker.add(panel);
      } else if (folder !== '') {
        panel.content.open(folder);
      }
      app.shell.activateById(panel.id);
    }
  });
  void restorer?.restore(tracker, {
    command: CONSOLE,
    args: ({ content }) => ({ folder: content.folder }),
    // The same for any folder: the saved layout identifies the panel by it.
    name: () => 'console'
  });
}

function consolePanel(content: ConsolePanel): MainAreaWidget<ConsolePanel> {
  const panel = new MainAreaWidget({ content });
  panel.id = 'rankroom-workshop-console';
  panel.title.label = trans.__('Workshop');
  panel.title.icon = boardIcon;
  panel.title.closable = true;
  return panel;
}

/** Add the learner's side if the server is a seat; return whether it is. */
async function addSeat(
  app: JupyterFrontEnd,
  api: Api,
  clusters: Clusters,
  rendermime: IRenderMimeRegistry,
  notebooks: INotebookTracker | null,
  statusBar: IStatusBar | null,
  labShell: ILabShell
): Promise<boolean> {
  const workshopApi = new WorkshopApi(api);
  const own = await firstAnswer(workshopApi);
  if (own?.role !== 'learner') {
    return false;
  }
  const seat = new Seat(workshopApi, own);
  const shown = new ShownRuns(app, api.at('workshop'), rendermime);
  const panel = new SeatPanel(seat, new Offers(app, notebooks, seat, clusters.api), { openRun: run => void shown.open(run) });
  labShell.add(panel, 'right', { rank: PLACE, type: 'Workshop' });
  const show = (): void => labShell.activateById(panel.id);
  app.commands.addCommand(PANEL, { label: trans.__('Show the Workshop'), execute: show });
  app.commands.addCommand(HAND, {
    label: () => (seat.isHandUp ? trans.__('Lower Your Hand') : trans.__('Raise Your Hand')),
    isToggled: () => seat.isHandUp,
    execute: () => seat.hand(!seat.isHandUp)
  });
  seat.changed.connect(() => app.commands.notifyCommandChanged(HAND));
  new SeatNotices(seat, () => panel.isVisible, show);
  statusBar?.registerStatusItem(ID, { item: new SeatStatus(seat, show), align: 'left', rank: 4 });
  return true;
}
