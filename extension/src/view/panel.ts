/** A run in a panel of its own, which is there again after the page was loaded anew. */
import type { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';

import type { Run } from '../schema';
import type { RendererParts } from './renderer';
import { RunView } from './runview';

const OPEN = 'rankroom:open-run';

/** Add the command that opens a run; returns how to call it. */
export function addPanels(
  app: JupyterFrontEnd,
  parts: Omit<RendererParts, 'open'>,
  restorer: ILayoutRestorer | null
): (run: Run) => void {
  const tracker = new WidgetTracker<MainAreaWidget<RunView>>({ namespace: 'rankroom' });
  app.commands.addCommand(OPEN, {
    label: 'Open Run in Panel',
    execute: async args => {
      const id = String(args.id);
      const there = tracker.find(panel => panel.content.model.id === id);
      const panel = there ?? makePanel(await parts.api.run(id), parts);
      if (!there) {
        const ref = tracker.currentWidget?.id;
        app.shell.add(panel, 'main', ref ? { ref, mode: 'tab-after' } : { mode: 'split-right' });
        await tracker.add(panel);
      }
      app.shell.activateById(panel.id);
    }
  });
  void restorer?.restore(tracker, {
    command: OPEN,
    args: panel => ({ id: panel.content.model.id }),
    name: panel => panel.content.model.id
  });
  return run => void app.commands.execute(OPEN, { id: run.id });
}

function makePanel(run: Run, parts: Omit<RendererParts, 'open'>): MainAreaWidget<RunView> {
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
  panel.title.caption = `Run ${run.id}`;
  panel.title.closable = true;
  return panel;
}
