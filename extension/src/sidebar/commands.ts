/**
 * The commands: in the palette, the launcher, the menu Kernel → Ranks and the context menus (schema/ranks.json).
 *
 * Arguments are `cluster`, a cluster's name, `rank`, and `run`, a run's id. Without `cluster`, a command applies to the
 * newest cluster with ranks; with `here`, to what was clicked on.
 */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { type ICommandPalette, showErrorMessage } from '@jupyterlab/apputils';
import type { ILauncher } from '@jupyterlab/launcher';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import type { Api, Step } from '../api';
import type { ClusterStatus } from '../cluster_status';
import { trans } from '../translation';
import { OPEN, sayWhy } from '../view/panel';
import type { CardActions } from './card';
import { type Clusters, message } from './clusters';
import { ranksIcon } from './icon';
import { isLive, isOver } from './phrases';
import { type Doing, isPossible, whenPossibleChanges } from './possible';

export const SHOW = 'rankroom:show-ranks';

type Args = ReadonlyPartialJSONObject;

export interface Places {
  show(): void;
  openForm(): void;
  startHere(): void;
}

export function addCommands(
  app: JupyterFrontEnd,
  api: Api,
  clusters: Clusters,
  actions: CardActions,
  places: Places,
  palette: ICommandPalette | null,
  launcher: ILauncher | null
): void {
  const { commands } = app;
  const category = trans.__('Ranks');
  const clickedOn = (what: string): string | undefined => app.contextMenuHitTest(node => what in node.dataset)?.dataset[what];
  const given = (args: Args, what: string): string | undefined =>
    args[what] === undefined ? (args.here ? clickedOn(what) : undefined) : String(args[what]);
  const cardOf = (args: Args): ClusterStatus | undefined => {
    const name = given(args, 'cluster');
    return clusters.all.find(card => (name === undefined ? isLive(card) : card.name === name));
  };
  const add = (id: string, label: string, execute: () => void, inMenu = label): void => {
    const icon = id === SHOW ? ranksIcon : undefined;
    commands.addCommand(id, { label: args => (args.isMenu ? inMenu : label), icon, caption: label, execute });
    palette?.addItem({ command: id, category });
  };
  const addForCluster = (
    id: string,
    what: Doing,
    label: (card: ClusterStatus | undefined, args: Args) => string,
    execute: (card: ClusterStatus, args: Args) => void | Promise<void>
  ): void => {
    commands.addCommand(id, {
      label: args => label(cardOf(args), args),
      isEnabled: args => {
        const card = cardOf(args);
        return card !== undefined && isPossible(card, what, clusters.actOn(card));
      },
      execute: args => {
        const card = cardOf(args);
        return card && execute(card, args);
      }
    });
    palette?.addItem({ command: id, category });
  };
  const addForRun = (step: Step, label: string): void => {
    commands.addCommand(`rankroom:${step}-run`, {
      label,
      isEnabled: args => {
        const id = given(args, 'run');
        const known = clusters.runs.find(run => run.id === id);
        return id !== undefined && (!known || known.state === 'running');
      },
      execute: async args => {
        try {
          return await api.take(given(args, 'run') ?? '', step);
        } catch (error) {
          await showErrorMessage(label, message(error));
          return '';
        }
      }
    });
  };

  add(SHOW, trans.__('Ranks'), () => places.show(), trans.__('Show the Ranks'));
  add('rankroom:start-here', trans.__('Start Ranks Here'), () => places.startHere());
  add('rankroom:start-ranks', trans.__('Start Ranks on a Site…'), () => places.openForm());
  addForCluster(
    'rankroom:insert-attach-cell',
    'insert',
    card => (card ? trans.__('Insert a Cell That Attaches to the Ranks of %1', card.name) : trans.__('Insert a Cell That Attaches to the Ranks')),
    card => actions.insertCell(card)
  );
  addForCluster(
    'rankroom:interrupt-ranks',
    'interrupt',
    card => (card ? trans.__('Interrupt the Ranks of %1', card.name) : trans.__('Interrupt the Ranks')),
    card => actions.act(card, 'interrupt')
  );
  addForCluster(
    'rankroom:restart-ranks',
    'restart',
    (card, args) => {
      const rank = given(args, 'rank');
      if (card && !card.is_supervised && !isOver(card)) {
        return trans.__('Reconnect to the Ranks of %1', card.name);
      }
      if (rank === undefined) {
        return card ? trans.__('Restart the Ranks of %1…', card.name) : trans.__('Restart the Ranks…');
      }
      return card ? trans.__('Restart Rank %1 of %2…', rank, card.name) : trans.__('Restart Rank %1…', rank);
    },
    (card, args) => actions.act(card, 'restart', given(args, 'rank'))
  );
  addForCluster(
    'rankroom:stop-ranks',
    'stop',
    card => (card ? trans.__('Stop the Ranks of %1…', card.name) : trans.__('Stop the Ranks…')),
    card => actions.act(card, 'stop')
  );
  addForCluster(
    'rankroom:open-log',
    'log',
    card => (card ? trans.__('Open the Log of %1', card.name) : trans.__('Open the Log')),
    card => actions.openLog(card)
  );
  commands.addCommand('rankroom:open-run-here', {
    label: trans.__('Open in a Panel'),
    // The entry of a `%%scaling` is not a run.
    isEnabled: args => given({ ...args, here: true }, 'run') !== undefined,
    execute: args => commands.execute(OPEN, { id: given({ ...args, here: true }, 'run') }).catch(sayWhy)
  });
  addForRun('interrupt', trans.__('Interrupt the Run'));
  addForRun('release', trans.__('Release Its Collectives'));
  whenPossibleChanges(clusters, () => commands.notifyCommandChanged());
  // Without a category it is in JupyterLab's own “Other”, whatever its translation.
  launcher?.add({ command: SHOW, rank: 10 });
}
