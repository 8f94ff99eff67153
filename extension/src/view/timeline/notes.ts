/** Notes on a timeline: which spans were dropped, how well clocks agree, and why it is empty. */
import type { RunModel } from '../../run/model';
import type { Look } from '../../timeline/look';
import { percent } from '../../timeline/amounts';
import { droppedWords } from '../../timeline/phrases';
import { trans } from '../../translation';
import { h, setText } from '../dom';

export interface Progress {
  isEmpty: boolean;
  /** Whether more of the record is still to be read. */
  isReading: boolean;
  /** Whether an overview is shown in the meantime. */
  isCoarse: boolean;
}

export class Notes {
  /** Under the timeline. */
  readonly node: HTMLElement;
  private said = h('span', '', { role: 'status' });
  /** Changes all the time while a record is read, so a screen reader must not announce it. */
  private share = h('span', '', { 'aria-hidden': 'true' });
  /** In the timeline's place, while there are no spans to show. */
  readonly empty = h('div', 'rr-tl-empty', { role: 'status' });

  constructor() {
    this.node = h('div', 'rr-notes rr-tl-note', {}, this.said, this.share);
  }

  refresh(model: RunModel, look: Look, { isEmpty, isReading, isCoarse }: Progress): void {
    this.empty.hidden = !isEmpty;
    if (isEmpty) {
      this.empty.textContent = why(model, isReading);
    }
    const words = [droppedWords(model.spans.dropped)];
    if (isCoarse) {
      words.push(trans.__('showing an overview until all spans are read'));
    }
    if (!isEmpty && look.isFirst) {
      words.push(trans.__('showing the first steps of the loop; press F to show everything'));
    }
    if (!isEmpty && look.isFar) {
      words.push(trans.__('some spans lie far outside the run; press F twice to show all'));
    }
    const worst = Math.max(0, ...model.run.ranks.map(({ clock }) => clock?.error ?? 0));
    if (!isEmpty && worst > 0) {
      words.push(trans.__('clocks of hosts agree to ± %1 µs', worst));
    }
    if (!isEmpty && model.collectives.trouble) {
      words.push(trans.__('waits in collectives cannot be shown: %1; retrying', model.collectives.trouble));
    }
    const text = words.filter(Boolean).join(' · ');
    this.node.hidden = text === '';
    setText(this.said, text);
    setText(this.share, isCoarse ? ` · ${trans.__('%1 read', percent(model.read, model.size))}` : '');
  }
}

/** Say why there is no timeline. */
function why(model: RunModel, isReading: boolean): string {
  if (model.refusal) {
    return '';
  }
  if (isReading || (!model.isComplete && model.read === 0)) {
    return trans.__('Reading the record …');
  }
  if (model.spans.count > 0) {
    return trans.__('The ranks shown have no spans.');
  }
  return model.isLive ? trans.__('No spans yet: they appear while the cell runs.') : trans.__('This run has no spans to show.');
}
