/** The newest runs; each opens in a panel. Those of one `%%scaling` are one entry, which unfolds. */
import type { Run } from '../schema';
import { trans } from '../translation';
import { h, setChildren, setText } from '../view/dom';
import { how, SIGNS, who } from '../words';
import type { Clusters } from './clusters';

/** Entries shown at most. */
const MOST = 15;
/** How `%%scaling` names its runs. */
const SCALING = /^scaling: (\d+) ranks?, (to warm up|\d+ of \d+)$/;

export class RunList {
  readonly node = h('div', 'rr-run-list', { role: 'list', 'aria-label': trans.__('newest runs') });
  private rows = new Map<string, Row>();
  private groups = new Map<string, Group>();
  private none = h('div', 'rr-nothing', {}, trans.__('No runs yet: each cell that starts with %1 becomes a run.', '%%distributed'));
  private wrong = h('div', 'rr-said-wrong', { role: 'alert' });

  constructor(private open: (run: Run) => void) {}

  refresh({ runs, areRunsKnown, runsTrouble, trouble, now }: Clusters): void {
    const entries = entriesOf(runs).slice(0, MOST);
    const rows = new Map<string, Row>();
    const groups = new Map<string, Group>();
    const nodes = entries.map(entry => {
      const made = entry.map(run => {
        const row = this.rows.get(run.id) ?? new Row(run, () => this.open(run));
        rows.set(run.id, row);
        return row.refresh(run, now);
      });
      if (scalingOf(entry[0]) === null) {
        return made[0];
      }
      // The key is the first run, which stays the same as more runs are added.
      const key = entry[entry.length - 1].id;
      const group = this.groups.get(key) ?? new Group(entry[0]);
      groups.set(key, group);
      return group.refresh(entry, made, now);
    });
    this.rows = rows;
    this.groups = groups;
    // That the server does not reply is said once, above the clusters.
    setText(this.wrong, trouble ? '' : runsTrouble);
    const first = this.wrong.textContent ? [this.wrong] : areRunsKnown && nodes.length === 0 ? [this.none] : [];
    setChildren(this.node, [...first, ...nodes]);
  }
}

/** The runs, newest first, with those of one `%%scaling` together. */
export function entriesOf(runs: readonly Run[]): Run[][] {
  const entries: Run[][] = [];
  for (const run of runs) {
    const last = entries[entries.length - 1];
    const isSame =
      last !== undefined && scalingOf(run) !== null && scalingOf(last[0]) !== null &&
      run.title === last[0].title && run.cluster === last[0].cluster &&
      // A name that occurs again is that of another `%%scaling` of the same cell.
      !last.some(({ name }) => name === run.name);
    if (isSame) {
      last.push(run);
    } else {
      entries.push([run]);
    }
  }
  return entries;
}

/** The number of ranks of a `%%scaling`'s run; null for other runs. */
function scalingOf(run: Run): number | null {
  const found = SCALING.exec(run.name ?? '');
  return found && Number(found[1]);
}

class Row {
  private sign = h('span', 'rr-sign', { 'aria-hidden': 'true' });
  private words = h('span', 'rr-run-words');
  private node: HTMLElement;

  constructor(run: Run, open: () => void) {
    // For the run of a scaling, the entry says the rest.
    const title = SCALING.exec(run.name ?? '')?.[2] ?? (run.name || run.title || run.id);
    const when = new Date(run.start / 1000).toLocaleString();
    const tip = `${run.name || title}\n${trans.__('%1, %2: open in a panel', run.id, when)}`;
    this.node = h(
      'div', '', { role: 'listitem' },
      h(
        'button', 'rr-run-row', { 'data-run': run.id, title: tip, onclick: open },
        this.sign, h('span', 'rr-run-title', {}, title), this.words
      )
    );
  }

  refresh(run: Run, now: number): HTMLElement {
    setSign(this.sign, run);
    const asks = run.state === 'running' && run.prompts?.length ? [trans.__('waits for an answer')] : [];
    setText(this.words, [who(run), stands(run, now), ...asks].join(' · '));
    return this.node;
  }
}

/** The runs of one `%%scaling`, folded until the user opens them. */
class Group {
  private sign = h('span', 'rr-sign', { 'aria-hidden': 'true' });
  private words = h('span', 'rr-run-words');
  private inner = h('div', 'rr-run-group', { role: 'list' });
  private node: HTMLElement;

  constructor(run: Run) {
    const title = run.title || run.id;
    this.node = h(
      'div', '', { role: 'listitem' },
      h(
        'details', '', {},
        h('summary', 'rr-run-row', { title: trans.__('%1\nthe runs of one %2', title, '%%scaling') },
          this.sign, h('span', 'rr-run-title', {}, title), this.words),
        this.inner
      )
    );
  }

  refresh(runs: readonly Run[], rows: readonly HTMLElement[], now: number): HTMLElement {
    const [newest] = runs;
    const sizes = [...new Set(runs.map(run => scalingOf(run) ?? 0))].sort((a, b) => a - b);
    setSign(this.sign, newest);
    const count = trans._n('%2 run', '%2 runs', runs.length, runs.length);
    const state = newest.state === 'done' ? '' : ` · ${stands(newest, now)}`;
    setText(this.words, `${trans._n('scaling on %2 rank', 'scaling on %2 ranks', sizes.length === 1 ? sizes[0] : 2, sizes.join(', '))} · ${count}${state}`);
    setChildren(this.inner, rows);
    return this.node;
  }
}

function setSign(sign: HTMLElement, { state }: Run): void {
  setText(sign, SIGNS[state] ?? '?');
  sign.className = `rr-sign rr-is-${state}`;
}

function stands(run: Run, now: number): string {
  return run.state === 'lost' ? trans.__('lost') : how(run, now * 1e6);
}
