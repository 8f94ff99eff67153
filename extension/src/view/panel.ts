/** A run in its own panel, which is restored when the page is reloaded. */
import type { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget, Notification, WidgetTracker } from '@jupyterlab/apputils';

import { TABS, type Tab } from '../run/memories';
import type { Run } from '../schema';
import { trans } from '../translation';
import type { RendererParts } from './renderer';
import { PANEL, RunView } from './runview';

export const OPEN = 'rankroom:open-run';

/** Add the command that opens a run; return a function that executes it. */
export function addPanels(
  app: JupyterFrontEnd,
  parts: Omit<RendererParts, 'open'>,
  restorer: ILayoutRestorer | null
): (run: Run, tab: Tab) => void {
  const tracker = new WidgetTracker<MainAreaWidget<RunView>>({ namespace: 'rankroom' });
  /** Panels that are being created, so that a second click does not create another one. */
  const making = new Map<string, Promise<MainAreaWidget<RunView>>>();
  const make = async (id: string, tab: unknown): Promise<MainAreaWidget<RunView>> => {
    const panel = makePanel(await parts.api.run(id), parts, tab);
    const ref = tracker.currentWidget?.id;
    app.shell.add(panel, 'main', ref ? { ref, mode: 'tab-after' } : { mode: 'split-right' });
    await tracker.add(panel);
    return panel;
  };
  app.commands.addCommand(OPEN, {
    label: trans.__('Open Run in Panel'),
    execute: async args => {
      const id = String(args.id);
      let panel = tracker.find(panel => panel.content.model.id === id);
      if (!panel) {
        const made = making.get(id) ?? make(id, args.tab).finally(() => making.delete(id));
        making.set(id, made);
        panel = await made;
      }
      if (isTab(args.tab)) {
        panel.content.setTab(args.tab);
      }
      app.shell.activateById(panel.id);
    }
  });
  void restorer?.restore(tracker, {
    command: OPEN,
    args: panel => ({ id: panel.content.model.id }),
    name: panel => panel.content.model.id
  });
  return (run, tab) => {
    app.commands.execute(OPEN, { id: run.id, tab }).catch(sayWhy);
  };
}

/** Notify the reader that a run cannot be opened, and why. */
export function sayWhy(error: unknown): void {
  Notification.error(trans.__('The run cannot be shown: %1', error instanceof Error ? error.message : String(error)));
}

function isTab(tab: unknown): tab is Tab {
  return TABS.some(each => each === tab);
}

function makePanel(run: Run, parts: Omit<RendererParts, 'open'>, tab: unknown): MainAreaWidget<RunView> {
  if (isTab(tab)) {
    parts.runs.memories.at(run.id, PANEL).tab = tab;
  }
  const content = new RunView({
    ...parts,
    run,
    // The content comes from the reader's own record, not from a notebook.
    isTrusted: true,
    isInline: false,
    open: null,
    fallback: null
  });
  const panel = new MainAreaWidget({ content });
  panel.id = `rankroom-run-${run.id}`;
  panel.title.label = run.title || run.id;
  panel.title.caption = trans.__('Run %1', run.id);
  panel.title.closable = true;
  return panel;
}
