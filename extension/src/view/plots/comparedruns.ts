/** The compared runs: a legend of their lines, and a list of other runs to compare with. */
import type { Choice } from '../../metrics/choice';
import { letterOf, MOST_COMPARED, runWords, type Comparison, type OtherRun, type RunsServer } from '../../metrics/comparison';
import type { Run } from '../../schema';
import { trans } from '../../translation';
import { h } from '../dom';
import { lineSample, rankColour } from './sample';

export class ComparedRuns {
  private said = '';
  private legend = h('span', 'rr-mt-legend', { role: 'list', 'aria-label': trans.__('runs that are compared') });
  private list = h('div', 'rr-chips rr-mt-list', { role: 'group', 'aria-label': trans.__('runs to compare with') });
  private picker = h(
    'details', 'rr-mt-compare', { ontoggle: () => this.picker.open && void this.fill() },
    h('summary', '', { title: trans.__('draw the metrics of other runs under those of this one') }, trans.__('compare with …')), this.list
  );
  readonly node = h('div', 'rr-tools rr-mt-runs', {}, this.legend, this.picker);

  constructor(
    private run: { readonly id: string; readonly run: Run },
    private server: RunsServer,
    private comparison: Comparison,
    private choice: Choice,
    private changed: () => void
  ) {}

  /** `rank` is the one whose color this run's line has; null for a mean's color, undefined if each rank has its own. */
  refresh(isThere: boolean, rank: number | null | undefined): void {
    const { others } = this.comparison;
    this.node.hidden = !isThere;
    this.picker.hidden = others.length >= MOST_COMPARED;
    const key = JSON.stringify([rank === undefined ? 'ranks' : rank, others.map(({ id, run, isLive }) => [id, run !== null, isLive])]);
    if (key !== this.said) {
      this.said = key;
      this.legend.hidden = others.length === 0;
      this.legend.replaceChildren(this.own(rank), ...others.map((other, i) => this.entry(other, i)));
    }
  }

  private own(rank: number | null | undefined): HTMLElement {
    return rank === undefined
      ? h('span', '', { role: 'listitem' }, trans.__('this run: a colour for each rank'))
      : h('span', '', { role: 'listitem' }, lineSample([], rankColour(rank)), trans.__('this run'));
  }

  private entry({ id, run, isLive }: OtherRun, i: number): HTMLElement {
    const letter = letterOf(i);
    const words = run ? runWords(run, isLive) : id;
    const remove = h('button', 'rr-chip', {
      title: trans.__('do not compare with %1', letter),
      'aria-label': trans.__('do not compare with %1: %2', letter, words),
      onclick: () => this.choose(this.comparison.others.map(other => other.id).filter(other => other !== id))
    }, '×');
    return h(
      'span', '', { role: 'listitem', title: `${run?.name || run?.title || ''}\n${trans.__('run %1', id)}`.trim() },
      lineSample(i), h('b', '', {}, letter), h('span', 'rr-mt-run', {}, words), remove
    );
  }

  /** Compare with the runs of these ids. */
  private choose(ids: readonly string[]): void {
    this.choice.compared = ids;
    this.picker.open = false;
    this.picker.querySelector('summary')?.focus();
    this.changed();
  }

  /** List the runs to compare with, those of the same cluster first. */
  private async fill(): Promise<void> {
    this.list.replaceChildren(h('span', 'rr-mt-count', { role: 'status' }, trans.__('Reading the runs …')));
    try {
      const { id, cluster } = this.run.run;
      const there = new Set([id, ...this.comparison.others.map(other => other.id)]);
      const runs = (await this.server.comparable()).filter(run => !there.has(run.id));
      const near = runs.filter(run => run.cluster === cluster);
      const chips = [...near, ...runs.filter(run => run.cluster !== cluster)].map(run => this.chip(run));
      this.list.replaceChildren(...(chips.length ? chips : [h('span', 'rr-mt-count', { role: 'status' }, trans.__('No other run has metrics.'))]));
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      this.list.replaceChildren(h('span', 'rr-complaint', { role: 'alert' }, why));
    }
  }

  private chip(run: Run): HTMLElement {
    return h('button', 'rr-chip', {
      title: `${run.name || run.title || ''}\n${trans.__('run %1 on %2', run.id, run.cluster)}`, 'data-run': run.id,
      onclick: () => this.choose([...this.comparison.others.map(other => other.id), run.id])
    }, runWords(run));
  }
}
