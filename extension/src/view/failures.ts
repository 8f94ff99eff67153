/** What failed: the first error's traceback, whole; the others in one line each. */
import { Widget } from '@lumino/widgets';

import { nameRanks } from '../ranks';
import type { ErrorEvent } from '../schema';
import type { RunModel } from '../run/model';
import { ansiNodes } from './ansitext';
import { h } from './dom';

/** Characters of a traceback at each of its ends; only endless ones are longer. */
const END = 30_000;

export class Failures extends Widget {
  private key = '';

  constructor(private model: RunModel) {
    super();
    this.addClass('rr-failures');
  }

  refresh(): void {
    const { first, others } = this.model.failures;
    const key = `${this.model.generation}:${first?.rank}:${others.length}`;
    if (key === this.key) {
      return;
    }
    this.key = key;
    this.setHidden(first === null);
    if (first) {
      this.node.replaceChildren(
        h('div', 'rr-cause', {}, title(first, [first.rank])),
        traceback(first),
        ...alike(others).map(([error, ranks]) =>
          h('details', 'rr-other', {}, h('summary', '', {}, title(error, ranks)), traceback(error))
        )
      );
    }
  }
}

function title(error: ErrorEvent, ranks: number[]): string {
  const what = `${error.ename}: ${error.evalue.trim().split('\n', 1)[0].slice(0, 300)}`;
  return `${nameRanks(ranks)} · ${what}${error.cell_line ? ` · cell line ${error.cell_line}` : ''}`;
}

function traceback(error: ErrorEvent): HTMLElement {
  let text = error.traceback.join('\n') || `${error.ename}: ${error.evalue}`;
  if (text.length > 2 * END) {
    const cut = (text.length - 2 * END).toLocaleString('en');
    text = `${text.slice(0, END)}\n… ${cut} characters left out …\n${text.slice(-END)}`;
  }
  return h('div', 'rr-traceback jp-RenderedText', { tabindex: '0' }, h('pre', '', {}, ...lines(text)));
}

function lines(text: string): Node[] {
  // Control characters are made visible, but line ends are line ends here.
  return text.split('\n').flatMap((line, i) => [
    ...(i ? [document.createTextNode('\n')] : []),
    ...ansiNodes(line)
  ]);
}

/** Errors with the same words, and the ranks that raised them. */
function alike(errors: ErrorEvent[]): Array<[ErrorEvent, number[]]> {
  const groups = new Map<string, [ErrorEvent, number[]]>();
  for (const error of errors) {
    const key = JSON.stringify([error.ename, error.evalue]);
    const group = groups.get(key) ?? [error, []];
    group[1].push(error.rank);
    groups.set(key, group);
  }
  groups.forEach(([, ranks]) => ranks.sort((a, b) => a - b));
  return [...groups.values()];
}
