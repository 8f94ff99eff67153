/** The controls above the plots: their horizontal axis, and how they are drawn. */
import type { Choice, XAxis } from '../../metrics/choice';
import { trans } from '../../translation';
import { h, handOn, setText } from '../dom';
import { setUnderWay, stepButton } from '../step';

/** Maximum smoothing: with more, a plot would show little but the smoothing. */
const MOST_SMOOTHING = 0.99;

export interface ControlActions {
  changed(): void;
  fit(): void;
  /** Resolves when the download has begun. */
  download(): Promise<void>;
}

export interface ControlState {
  /** Whether there are plots. */
  isThere: boolean;
  /** Whether any of them shows several ranks. */
  isMany: boolean;
  isMean: boolean;
}

export class Controls {
  private axes = new Map<XAxis, HTMLButtonElement>();
  private means = new Map<boolean, HTMLButtonElement>();
  private over = h('span', 'rr-chips', { role: 'group', 'aria-label': trans.__('how several ranks are drawn') });
  private log = h('input', '', { type: 'checkbox', onchange: () => this.set(() => (this.choice.isLog = this.log.checked)) });
  private smooth = h('input', 'rr-mt-smooth', {
    type: 'range', min: '0', max: String(MOST_SMOOTHING), step: '0.01',
    oninput: () => this.set(() => (this.choice.smoothing = Number(this.smooth.value)))
  });
  private smoothing = h('output', 'rr-mt-amount');
  private whole = h('button', 'rr-button', { title: trans.__('show all points (0, or double click)'), onclick: () => this.actions.fit() }, trans.__('show all'));
  private save = stepButton(
    trans.__('⤓ CSV'),
    trans.__('download every point of the metrics shown, as comma-separated values'),
    () => this.download()
  );
  private said = h('span', 'rr-complaint', { role: 'status' });
  readonly node: HTMLElement;

  constructor(
    private choice: Choice,
    private actions: ControlActions
  ) {
    const axes = h(
      'span', 'rr-chips', { role: 'group', 'aria-label': trans.__('horizontal axis') },
      this.axis('step', trans.__('step'), trans.__('by the step that was reported with each value')),
      this.axis('time', trans.__('time'), trans.__('by time since the run’s start, like the timeline'))
    );
    this.over.append(
      this.mean(false, trans.__('ranks'), trans.__('a curve for each rank')),
      this.mean(true, trans.__('mean'), trans.__('the mean of the ranks, and around it from the lowest to the highest rank'))
    );
    this.node = h(
      'div', 'rr-tools rr-mt-tools', {},
      axes, this.over,
      h('label', 'rr-same', { title: trans.__('logarithmic scale, for values above 0') }, this.log, trans.__('log scale')),
      h(
        'label', 'rr-same', { title: trans.__('exponential moving average: how much of it remains after each further point; the raw values are drawn pale behind it') },
        trans.__('smoothing'), this.smooth, this.smoothing
      ),
      this.whole, this.save, this.said
    );
    this.log.checked = choice.isLog;
    this.smooth.value = String(choice.smoothing);
  }

  refresh({ isThere, isMany, isMean }: ControlState): void {
    const { choice } = this;
    this.node.hidden = !isThere;
    this.over.hidden = !isMany;
    this.axes.forEach((button, axis) => button.setAttribute('aria-pressed', String(axis === choice.axis)));
    this.means.forEach((button, is) => button.setAttribute('aria-pressed', String(is === isMean)));
    setText(this.smoothing, choice.smoothing ? choice.smoothing.toFixed(2) : trans.__('off'));
    if (choice.window.isFitted) {
      handOn(this.whole, () => this.axes.get(choice.axis)?.focus());
    }
    this.whole.hidden = choice.window.isFitted;
  }

  private axis(axis: XAxis, label: string, title: string): HTMLElement {
    const button = h('button', 'rr-chip', { title, onclick: () => this.set(() => (this.choice.axis = axis)) }, label);
    this.axes.set(axis, button);
    return button;
  }

  private mean(isMean: boolean, label: string, title: string): HTMLElement {
    const button = h('button', 'rr-chip', { title, onclick: () => this.set(() => (this.choice.isMean = isMean)) }, label);
    this.means.set(isMean, button);
    return button;
  }

  private set(change: () => void): void {
    change();
    this.actions.changed();
  }

  private async download(): Promise<void> {
    setUnderWay(this.save, true);
    setText(this.said, '');
    try {
      await this.actions.download();
    } catch (error) {
      setText(this.said, trans.__('not downloaded: %1', error instanceof Error ? error.message : String(error)));
    } finally {
      setUnderWay(this.save, false);
    }
  }
}
