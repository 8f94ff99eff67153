/** One line of the log as a DOM node: `0–3 │ epoch 1`. */
import { headText, type Head } from '../log/head';
import { ERROR, NOTE, STDERR, STYLED, cutNote } from '../log/lines';
import { formatRanks, nameRanks, rankClass } from '../ranks';
import { trans } from '../translation';
import { moment } from '../words';
import { ansiNodes } from './ansitext';
import { h } from './dom';

export interface RowContent {
  ranks: readonly number[];
  flags: number;
  text: string;
  cut: number;
  /** Microseconds since the run's start; null while the line is being written. */
  t: number | null;
  /** Shown instead of the text if the lines are not equal. */
  head?: Head | null;
  /** The button that shows each of the lines. */
  opener?: HTMLElement;
}

export function rowNode(content: RowContent): HTMLElement {
  const { flags, text, cut, head } = content;
  const node = h(
    'div',
    `rr-row ${kindClass(flags)} ${rankColour(content.ranks)}`,
    {},
    h('span', 'rr-ranks', { title: titleOf(content) }, formatRanks(content.ranks)),
    h('span', 'rr-bar', { 'aria-hidden': 'true' }, signOf(flags)),
    timeButton(content.t),
    h('span', 'rr-text', {}, ...(head ? headNodes(head, content.opener) : flags & STYLED ? ansiNodes(text) : [text]))
  );
  if (flags & STDERR) {
    node.prepend(h('span', 'rr-hidden', {}, `${trans.__('stderr')} `));
  }
  if (cut) {
    node.lastChild?.appendChild(h('em', 'rr-cut', {}, cutNote(cut)));
  }
  return node;
}

/** Create the button that shows the lines that a row stands for, and hides them again. */
export function openerNode(group: number, isOpened: boolean, { isFold }: Head): HTMLElement {
  const title = isFold ? trans.__('show these lines') : trans.__('show the line of each rank');
  return h(
    'button',
    'rr-opener',
    { 'aria-expanded': String(isOpened), 'aria-label': title, title, 'data-group': String(group) },
    isOpened ? '▾' : '▸'
  );
}

function headNodes(head: Head, opener: HTMLElement | undefined): Array<Node | string> {
  const nodes = head.pieces.map(piece =>
    typeof piece === 'string' ? piece : h('span', 'rr-numbers', { title: numbersTitle(head, piece) }, headText([piece]))
  );
  return [...(opener ? [opener] : []), ...(head.isFold ? [h('span', 'rr-fold', {}, ...nodes)] : nodes)];
}

/** Return a title with the number of each rank. */
function numbersTitle({ ranks }: Head, numbers: readonly string[]): string {
  return ranks.map((rank, i) => `${nameRanks([rank])}: ${numbers[i]}`).join('\n');
}

/** Create the button that leads from a line to its moment in the timeline; visible only if there is one. */
function timeButton(t: number | null): HTMLElement | null {
  const title = trans.__('show this moment in the timeline');
  return t === null ? null : h('button', 'rr-moment', { tabindex: '-1', 'aria-label': title, title, 'data-t': String(t) });
}

/** Update which ranks wrote the line, after a rank has been added. */
export function updateRanks(node: HTMLElement, content: Pick<RowContent, 'ranks' | 'flags' | 't'>): void {
  const label = node.querySelector<HTMLElement>('.rr-ranks');
  const text = formatRanks(content.ranks);
  if (label && label.textContent !== text) {
    label.textContent = text;
    label.title = titleOf(content);
    node.className = `rr-row ${kindClass(content.flags)} ${rankColour(content.ranks)}`;
  }
}

function titleOf({ ranks, flags, t }: Pick<RowContent, 'ranks' | 'flags' | 't'>): string {
  const stream = flags & (ERROR | NOTE) ? '' : flags & STDERR ? ' · stderr' : ' · stdout';
  return `${nameRanks(ranks)}${stream} · ${t === null ? trans.__('being written') : moment(t)}`;
}

function kindClass(flags: number): string {
  if (flags & ERROR) {
    return 'rr-error';
  }
  if (flags & NOTE) {
    return 'rr-note';
  }
  return flags & STDERR ? 'rr-stderr' : 'rr-stdout';
}

function signOf(flags: number): string {
  if (flags & ERROR) {
    return '✗';
  }
  return flags & NOTE ? '·' : flags & STDERR ? '┃' : '│';
}

function rankColour(ranks: readonly number[]): string {
  return ranks.length === 1 ? rankClass(ranks[0]) : 'rr-rank-many';
}
