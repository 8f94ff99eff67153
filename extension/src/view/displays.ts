/** Rich outputs of the ranks, each labeled with its rank; results last. */
import { MimeModel, type IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Panel, Widget } from '@lumino/widgets';

import { nameRanks, rankClass } from '../ranks';
import type { RunModel } from '../run/model';
import type { SameOutput } from '../run/outputs';
import { trans } from '../translation';
import { focusOn, h, handOn } from './dom';

/** Number of outputs that are shown before the reader asks for more. */
const FIRST = 24;
/** MIME types that work only with a live kernel of the notebook behind them. */
const DEAD = ['application/vnd.jupyter.widget-view+json'];

export class Displays extends Panel {
  private items = new Map<string, Widget>();
  private most = FIRST;
  private key = '';
  private more = new Widget();

  constructor(
    private model: RunModel,
    private rendermime: IRenderMimeRegistry,
    private isTrusted: boolean
  ) {
    super();
    this.addClass('rr-displays');
    this.more.addClass('rr-more');
  }

  refresh(ranks: ReadonlySet<number> | null, collapsed: boolean): void {
    const { outputs, generation } = this.model;
    const key = [generation, outputs.version, ranks ? [...ranks].join() : 'all', collapsed, this.most].join(':');
    if (key === this.key) {
      return;
    }
    this.key = key;
    const groups = outputs.grouped(ranks, collapsed);
    this.setHidden(groups.length === 0);
    const wanted = new Map<string, SameOutput>();
    const equal = new Map<string, number>(); // number of groups so far, by key
    for (const group of groups.slice(0, this.most)) {
      const before = equal.get(group.key) ?? 0;
      equal.set(group.key, before + 1);
      wanted.set(`${group.ranks.join()}:${group.key}:${before}`, group);
    }
    for (const [name, widget] of this.items) {
      if (!wanted.has(name)) {
        widget.dispose();
        this.items.delete(name);
      }
    }
    let at = 0;
    for (const [name, group] of wanted) {
      const widget = this.items.get(name) ?? this.make(group);
      this.items.set(name, widget);
      this.insertWidget(at++, widget);
    }
    this.offerMore(groups.length - wanted.size);
  }

  private make(group: SameOutput): Widget {
    const panel = new Panel();
    const isShort = isShortText(group);
    panel.addClass('rr-display');
    panel.toggleClass('rr-inline-value', isShort);
    const colour = group.ranks.length === 1 ? rankClass(group.ranks[0]) : 'rr-rank-many';
    const label = h('div', `rr-label ${colour}`, {}, `${nameRanks(group.ranks)}${isShort ? ':' : ''}`);
    panel.addWidget(new Widget({ node: label }));
    const data = Object.fromEntries(Object.entries(group.data).filter(([type]) => !DEAD.includes(type)));
    const type = this.rendermime.preferredMimeType(
      data as ReadonlyPartialJSONObject,
      this.isTrusted ? 'any' : 'ensure'
    );
    if (!type) {
      const types = Object.keys(group.data).join(', ');
      panel.addWidget(new Widget({ node: h('em', '', {}, trans.__('output of type %1 cannot be shown here', types)) }));
      return panel;
    }
    const renderer = this.rendermime.createRenderer(type);
    panel.addWidget(renderer);
    const model = new MimeModel({
      data: data as ReadonlyPartialJSONObject,
      metadata: group.metadata as ReadonlyPartialJSONObject,
      trusted: this.isTrusted
    });
    renderer.renderModel(model).catch(error => {
      const words = trans.__('output of type %1 cannot be shown here: %2', type, String(error));
      panel.addWidget(new Widget({ node: h('em', '', {}, words) }));
    });
    return panel;
  }

  private offerMore(left: number): void {
    this.more.parent = null;
    if (left > 0) {
      const show = (): void => {
        this.most = Infinity;
        handOn(this.more.node, () => focusOn(this.node));
        this.refreshAll();
      };
      const words = trans._n('show %1 more output', 'show %1 more outputs', left);
      this.more.node.replaceChildren(h('button', 'rr-button', { onclick: show }, words));
      this.addWidget(this.more);
    }
  }

  private refreshAll(): void {
    this.key = '';
    this.model.notify();
  }
}

/** Whether the output is a line of text, which is shown beside its label. */
function isShortText({ data }: SameOutput): boolean {
  const text = data['text/plain'];
  return Object.keys(data).length === 1 && typeof text === 'string' && !text.includes('\n');
}
