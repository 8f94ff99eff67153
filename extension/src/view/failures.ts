/** The errors of a run: the first one with its whole traceback, the others in one line each. */
import { Widget } from '@lumino/widgets';

import { nameRanks } from '../ranks';
import { alike } from '../run/alike';
import type { ErrorEvent } from '../schema';
import type { RunModel } from '../run/model';
import { ownLine } from '../run/ownline';
import { trans } from '../translation';
import { errorWords, grouped } from '../words';
import { ansiNodes } from './ansitext';
import { h } from './dom';

/** Characters shown at each end of a traceback; only endless ones are longer. */
const END = 30_000;

export class Failures extends Widget {
  private key = '';

  constructor(private model: RunModel) {
    super();
    this.addClass('rr-failures');
  }

  refresh(): void {
    const { first, others } = this.model.failures;
    // What a rank was released from becomes known shortly after its error.
    const released = others.map(error => this.model.releaseOf(error)).join();
    const key = `${this.model.generation}:${first?.rank}:${others.length}:${released}`;
    if (key === this.key) {
      return;
    }
    this.key = key;
    this.setHidden(!first && !others.length);
    const open = new Set([...this.node.querySelectorAll<HTMLElement>('.rr-other[open]')].map(node => node.dataset.key));
    this.node.replaceChildren(
      ...(first ? [h('div', 'rr-cause', {}, title([first.rank], errorWords(first, 300), first)), traceback(first)] : []),
      ...alike(others, error => this.model.releaseOf(error) ?? errorWords(error, 300)).map(({ key, words, error, ranks }) =>
        h('details', 'rr-other', { 'data-key': key, open: open.has(key) },
          h('summary', '', {}, title(ranks, words, error)), traceback(error))
      )
    );
  }
}

function title(ranks: number[], words: string, error: ErrorEvent): string {
  return [nameRanks(ranks), words, ...(error.cell_line ? [trans.__('cell line %1', error.cell_line)] : [])].join(' · ');
}

function traceback(error: ErrorEvent): HTMLElement {
  let text = error.traceback.join('\n') || errorWords(error, 2 * END);
  if (text.length > 2 * END) {
    const cut = text.length - 2 * END;
    const words = trans._n('… %2 character left out …', '… %2 characters left out …', cut, grouped(cut));
    text = `${text.slice(0, END)}\n${words}\n${text.slice(-END)}`;
  }
  return h('div', 'rr-traceback jp-RenderedText', { tabindex: '0' }, h('pre', '', {}, ...lines(text, error)));
}

function lines(text: string, { cell_line: line }: ErrorEvent): Node[] {
  // Split into lines first, as `ansiNodes` makes control characters visible, including line ends.
  const each = text.split('\n');
  const own = ownLine(each, line ?? null);
  return each.flatMap((line, i) => {
    const nodes = ansiNodes(line);
    return [
      ...(i ? [document.createTextNode('\n')] : []),
      ...(i === own ? [h('mark', 'rr-own', { title: trans.__('the line of the cell') }, ...nodes)] : nodes)
    ];
  });
}
