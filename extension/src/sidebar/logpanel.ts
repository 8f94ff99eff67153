/** The output of a cluster's job in a panel, followed while the panel is visible. */
import { MainAreaWidget } from '@jupyterlab/apputils';
import { Poll } from '@lumino/polling';
import { Widget } from '@lumino/widgets';

import type { ClustersApi } from '../api/clusters';
import { trans } from '../translation';
import { h, setText } from '../view/dom';
import { Sight } from '../view/sight';
import { message } from './clusters';
import { ranksIcon } from './icon';

const AGAIN_MS = 3_000;
/** The view counts as being at the end up to this many pixels above it. */
const NEAR = 30;

class LogView extends Widget {
  private text = h('pre', 'rr-job-log', { tabindex: '0' });
  private wrong = h('div', 'rr-said-wrong', { role: 'alert', hidden: true });
  private poll: Poll;
  private sight: Sight;

  constructor(
    private api: ClustersApi,
    private cluster: string
  ) {
    super();
    this.addClass('rr-job-log-panel');
    this.text.setAttribute('aria-label', trans.__('log of %1', cluster));
    this.node.append(this.wrong, this.text);
    this.poll = new Poll({
      auto: false,
      name: `rankroom:log:${cluster}`,
      factory: () => this.fetch(),
      frequency: { interval: AGAIN_MS, backoff: true, max: 10 * AGAIN_MS },
      standby: 'when-hidden'
    });
    this.sight = new Sight(this.node, isSeen => void (isSeen ? this.poll.start() : this.poll.stop()));
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.sight.dispose();
      this.poll.dispose();
      super.dispose();
    }
  }

  private async fetch(): Promise<void> {
    const { text } = this;
    try {
      const log = await this.api.log(this.cluster);
      const isAtEnd = text.scrollTop + text.clientHeight > text.scrollHeight - NEAR;
      setText(text, log || trans.__('Nothing has been written yet.'));
      this.wrong.hidden = true;
      if (isAtEnd) {
        text.scrollTop = text.scrollHeight;
      }
    } catch (error) {
      // Keep showing what was read before.
      setText(this.wrong, message(error));
      this.wrong.hidden = false;
      throw error;
    }
  }
}

export function logPanel(api: ClustersApi, cluster: string): MainAreaWidget {
  const panel = new MainAreaWidget({ content: new LogView(api, cluster) });
  panel.id = `rankroom-log-${cluster}`;
  panel.title.label = trans.__('%1 log', cluster);
  panel.title.icon = ranksIcon;
  panel.title.closable = true;
  return panel;
}
