/** The sidebar's commands, in the palette and the launcher. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette } from '@jupyterlab/apputils';
import type { ILauncher } from '@jupyterlab/launcher';

import type { Card } from '../cards';
import type { CardActions } from './card';
import type { Clusters } from './clusters';
import { ranksIcon } from './icon';
import { isLive } from './phrases';

export const SHOW = 'rankroom:show-ranks';
const CATEGORY = 'Ranks';

export interface Places {
  show(): void;
  openForm(): void;
  startHere(): void;
}

export function addCommands(
  app: JupyterFrontEnd,
  clusters: Clusters,
  actions: CardActions,
  places: Places,
  palette: ICommandPalette | null,
  launcher: ILauncher | null
): void {
  /** The newest with ranks. */
  const newest = (): Card | undefined => clusters.cards.find(isLive);
  const of = (card: Card | undefined): string => (card ? ` of ${card.name}` : '');
  const add = (id: string, label: string, execute: () => void): void => {
    app.commands.addCommand(id, { label, icon: id === SHOW ? ranksIcon : undefined, caption: label, execute });
  };
  const addForNewest = (id: string, label: (of: string) => string, execute: (card: Card) => void): void => {
    app.commands.addCommand(id, {
      label: () => label(of(newest())),
      isEnabled: () => newest() !== undefined,
      execute: () => {
        const card = newest();
        return card && execute(card);
      }
    });
  };
  add(SHOW, 'Ranks', () => places.show());
  add('rankroom:start-here', 'Start Ranks Here', () => places.startHere());
  add('rankroom:start-ranks', 'Start Ranks on a Site…', () => places.openForm());
  addForNewest('rankroom:insert-attach-cell', of => `Insert the Attach Cell${of}`, card => actions.insertCell(card));
  addForNewest('rankroom:interrupt-ranks', of => `Interrupt the Ranks${of}`, card => void actions.act(card, 'interrupt'));
  addForNewest('rankroom:restart-ranks', of => `Restart the Ranks${of}…`, card => void actions.act(card, 'restart'));
  addForNewest('rankroom:stop-ranks', of => `Stop the Ranks${of}…`, card => void actions.act(card, 'stop'));
  addForNewest('rankroom:open-log', of => `Open the Log${of}`, card => actions.openLog(card));
  const commands = app.commands.listCommands().filter(id => id.startsWith('rankroom:') && id !== 'rankroom:open-run');
  commands.forEach(command => palette?.addItem({ command, category: CATEGORY }));
  clusters.changed.connect(() => app.commands.notifyCommandChanged());
  launcher?.add({ command: SHOW, category: 'Other', rank: 10 });
}
