/** The output of a `%%distributed` cell: a run view made from the bundle in the notebook. */
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Panel, Widget } from '@lumino/widgets';

import type { Api } from '../api';
import { parseBundle } from '../record';
import type { Run } from '../schema';
import type { Tab } from '../run/memories';
import type { Runs } from '../run/runs';
import { trans } from '../translation';
import { h } from './dom';
import { RunView } from './runview';

export const MIME = 'application/vnd.rankroom.run+json';

export interface RendererParts {
  runs: Runs;
  api: Api;
  rendermime: IRenderMimeRegistry;
  open: ((run: Run, tab: Tab) => void) | null;
}

export class RunRenderer extends Panel implements IRenderMime.IRenderer {
  private view: RunView | null = null;

  constructor(private parts: RendererParts) {
    super();
    this.addClass('rr-output');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const bundle = parseBundle(model.data[MIME]);
    if (bundle === null) {
      this.say(trans.__('This output names no run: run the cell again.'));
    } else if (this.view?.model.id === bundle.run.id && this.view.isTrusted === model.trusted) {
      this.view.update(bundle.run, model.data);
    } else {
      this.view?.dispose();
      this.view = new RunView({
        ...this.parts,
        run: { ...bundle.run, version: bundle.version },
        isTrusted: model.trusted,
        isInline: true,
        fallback: model.data
      });
      this.addWidget(this.view);
    }
  }

  private say(sentence: string): void {
    this.view?.dispose();
    this.view = null;
    this.addWidget(new Widget({ node: h('div', 'rr-refusal', {}, sentence) }));
  }
}
