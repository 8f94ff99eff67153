/** A run in a panel of its own, which is there again after the page was loaded again. */
import type { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';

import type { Tab } from '../run/runs';
import type { Run } from '../schema';
import { trans } from '../translation';
import type { RendererParts } from './renderer';
import { PANEL, RunView } from './runview';

export const OPEN = 'rankroom:open-run';

/** Add the command that opens a run; returns how to call it. */
export function addPanels(
  app: JupyterFrontEnd,
  parts: Omit<RendererParts, 'open'>,
  restorer: ILayoutRestorer | null
): (run: Run, tab: Tab) => void {
  const tracker = new WidgetTracker<MainAreaWidget<RunView>>({ namespace: 'rankroom' });
  app.commands.addCommand(OPEN, {
    label: trans.__('Open Run in Panel'),
    execute: async args => {
      const id = String(args.id);
      const there = tracker.find(panel => panel.content.model.id === id);
      const panel = there ?? makePanel(await parts.api.run(id), parts, args.tab);
      if (!there) {
        const ref = tracker.currentWidget?.id;
        app.shell.add(panel, 'main', ref ? { ref, mode: 'tab-after' } : { mode: 'split-right' });
        await tracker.add(panel);
      }
      if (isTab(args.tab)) {
        panel.content.setTab(args.tab);
      }
      app.shell.activateById(panel.id);
    }
  });
  void restorer?.restore(tracker, {
    command: OPEN,
    args: panel => ({ id: panel.content.model.id, tab: panel.content.tab }),
    name: panel => panel.content.model.id
  });
  return (run, tab) => void app.commands.execute(OPEN, { id: run.id, tab });
}

function isTab(tab: unknown): tab is Tab {
  return tab === 'logs' || tab === 'metrics' || tab === 'timeline' || tab === 'profile';
}

function makePanel(run: Run, parts: Omit<RendererParts, 'open'>, tab: unknown): MainAreaWidget<RunView> {
  if (isTab(tab)) {
    parts.runs.memory(run.id, PANEL).tab = tab;
  }
  const content = new RunView({
    ...parts,
    run,
    // What is shown comes from the reader's own record, not from a notebook.
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
