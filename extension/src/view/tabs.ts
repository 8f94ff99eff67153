/** The list of tabs: Logs | Metrics | Timeline | Profile. */
import type { Widget } from '@lumino/widgets';

import type { Tab } from '../run/memories';
import { trans } from '../translation';
import { h } from './dom';

let panels = 0;

export class Tabs {
  readonly node = h('span', 'rr-tabs', { role: 'tablist', 'aria-label': trans.__('what to show of the run'), hidden: true });
  private buttons = new Map<Tab, HTMLButtonElement>();

  /** `choose` is called when the reader chooses another tab. */
  constructor(
    tabs: readonly Tab[],
    private choose: (tab: Tab) => void
  ) {
    const names: { [tab in Tab]: string } = {
      logs: trans.__('Logs'),
      metrics: trans.__('Metrics'),
      timeline: trans.__('Timeline'),
      profile: trans.__('Profile')
    };
    for (const tab of tabs) {
      const button = h('button', 'rr-tab', { role: 'tab', onclick: () => this.choose(tab) }, names[tab]);
      button.dataset.tab = tab;
      this.buttons.set(tab, button);
    }
    this.node.append(...this.buttons.values());
    this.node.addEventListener('keydown', event => this.onKey(event));
  }

  /** Show which tabs there are, and which one is chosen; `panel` is its content. */
  refresh(chosen: Tab, there: ReadonlySet<Tab>, panel: Widget | null): void {
    this.node.hidden = there.size < 2;
    this.buttons.forEach((button, tab) => {
      const isChosen = tab === chosen;
      button.hidden = !there.has(tab);
      button.setAttribute('aria-selected', String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
      button.toggleAttribute('aria-controls', false);
      if (isChosen && panel) {
        panel.id ||= `rr-tabpanel-${++panels}`;
        panel.node.setAttribute('role', 'tabpanel');
        panel.node.setAttribute('aria-label', button.textContent ?? '');
        button.setAttribute('aria-controls', panel.id);
      }
    });
  }

  /** Go from tab to tab by arrows, Home and End, as in all lists of tabs. */
  private onKey(event: KeyboardEvent): void {
    const tabs = [...this.buttons].filter(([, button]) => !button.hidden).map(([tab]) => tab);
    const at = tabs.findIndex(tab => this.buttons.get(tab) === document.activeElement);
    const to: { [key: string]: number } = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 };
    const next = tabs[((to[event.key] ?? NaN) + tabs.length) % tabs.length];
    if (next !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      this.choose(next);
      this.buttons.get(next)?.focus();
    }
  }
}
