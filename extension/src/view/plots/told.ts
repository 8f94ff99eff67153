/** Texts beside the plots: notes, why there are no plots, and the last values for screen readers. */
import { CURVES, type Line } from '../../metrics/lines';
import { lastOfOthers, lastWords } from '../../metrics/phrases';
import type { MetricsSource } from '../../metrics/source';
import type { RunModel } from '../../run/model';
import { trans } from '../../translation';
import { h, setText } from '../dom';

export class Told {
  /** Above the plots. */
  readonly notes = h('div', 'rr-notes rr-mt-notes', { role: 'status', hidden: true });
  /** In place of the plots, if there are none. */
  readonly empty = h('div', 'rr-mt-empty', { role: 'status' });
  /** The last values, for screen readers. */
  readonly lasts = h('table', 'rr-hidden');

  constructor(
    private model: Pick<RunModel, 'isLive'>,
    private source: MetricsSource
  ) {}

  /** `shown` is the number of plots, `isFiltered` whether names are filtered, `ofOthers` are notes on compared runs. */
  refresh(shown: number, isFiltered: boolean, ofOthers: readonly string[]): void {
    const { source, notes } = this;
    const sentences = [
      ...source.notes,
      ...ofOthers,
      ...(source.trouble && source.names?.length ? [trans.__('not up to date: %1; retrying', source.trouble)] : [])
    ];
    const key = sentences.join('\n');
    if (notes.dataset.key !== key) {
      notes.dataset.key = key;
      notes.replaceChildren(...sentences.map(note => h('div', 'rr-remark', {}, note)));
      notes.hidden = sentences.length === 0;
    }
    this.empty.hidden = shown > 0;
    setText(this.empty, shown > 0 ? '' : this.why(isFiltered));
  }

  /** Show the last values of these plots as a table. */
  refreshLasts(plots: ReadonlyArray<{ name: string; wholeLines: readonly Line[]; wholeOthers: readonly Line[] }>): void {
    const rows = plots.map(({ name, wholeLines, wholeOthers }) => ({
      name,
      values: [
        ...wholeLines.slice(0, CURVES).map(line => {
          const who = line.rank === null ? trans.__('mean of ranks') : trans.__('rank %1', line.rank);
          return `${who}: ${lastWords([line])}`;
        }),
        ...lastOfOthers(wholeOthers)
      ]
    }));
    const key = JSON.stringify(rows);
    if (this.lasts.dataset.key !== key) {
      this.lasts.dataset.key = key;
      this.lasts.replaceChildren(
        h('caption', '', {}, trans.__('last values')),
        h('tbody', '', {}, ...rows.map(({ name, values }) =>
          h('tr', '', {}, h('th', '', { scope: 'row' }, name), ...values.map(value => h('td', '', {}, value)))))
      );
    }
  }

  /** Say why there are no plots. */
  private why(isFiltered: boolean): string {
    const { names, trouble } = this.source;
    if (names?.length) {
      return isFiltered ? trans.__('No metric of the ranks shown matches the filter.') : trans.__('The ranks shown have no metrics.');
    }
    if (trouble) {
      return trans.__('The metrics cannot be shown now: %1; retrying.', trouble);
    }
    if (names === null) {
      return trans.__('Reading the metrics …');
    }
    return this.model.isLive ? trans.__('No metrics yet: they appear once the ranks report some.') : trans.__('This run has no metrics to show.');
  }
}
