/** The status bar's item: how many ranks there are, and the time left. */
import { type ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { trans } from '../translation';
import { h, setText } from '../view/dom';
import type { Clusters } from './clusters';
import { summary } from './phrases';

export class StatusItem extends Widget {
  private button: HTMLButtonElement;
  private activeChanged = new Signal<this, void>(this);

  constructor(
    private clusters: Clusters,
    open: () => void
  ) {
    super();
    this.addClass('rr-status');
    this.button = h('button', 'rr-status-button', { title: trans.__('show the ranks'), onclick: open });
    this.node.append(this.button);
    clusters.changed.connect(this.tick, this);
  }

  get isActive(): boolean {
    return this.button.textContent !== '';
  }

  get activeStateChanged(): ISignal<this, void> {
    return this.activeChanged;
  }

  /** Update the text, in which the time left counts down. */
  tick(): void {
    const was = this.isActive;
    setText(this.button, summary(this.clusters.all, this.clusters.now));
    if (was !== this.isActive) {
      this.activeChanged.emit();
    }
  }
}
