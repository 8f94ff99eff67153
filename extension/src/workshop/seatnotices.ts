/** JupyterLab’s notifications of what the teacher says and offers, while the panel is hidden. */
import { Notification } from '@jupyterlab/apputils';

import { trans } from '../translation';
import type { Message, Offer } from '../workshop_answers';
import type { Seat } from './seat';
import { clock, offerWords } from './words';

const MOST = 240;
/** How long the notification of a message stays; the message remains in the panel. */
const STAYS_MS = 20_000;

export class SeatNotices {
  private isEnding = false;

  constructor(
    private seat: Seat,
    /** Whether the panel, which says the same, is visible. */
    private isSeen: () => boolean,
    private open: () => void
  ) {
    seat.news.connect((_, told) => this.tell(told));
    seat.changed.connect(() => this.warn());
  }

  private tell(told: Message | Offer): void {
    if (this.isSeen()) {
      return;
    }
    const text = 'what' in told ? offerWords(told)[0] : messageWords(told);
    const actions = [{ label: trans.__('Show'), callback: this.open }];
    Notification.info(text, { autoClose: 'what' in told ? false : STAYS_MS, actions });
  }

  /** Warn once when the end is near. */
  private warn(): void {
    const { ends } = this.seat.own;
    if (ends && !this.isEnding) {
      Notification.warning(
        trans.__('The workshop ends at %1, and your ranks and this JupyterLab with it. Save what you want to keep.', clock(ends)),
        { autoClose: false }
      );
    }
    this.isEnding = ends > 0;
  }
}

function messageWords({ kind, text }: Message): string {
  const short = text.length > MOST ? `${text.slice(0, MOST)}…` : text;
  switch (kind) {
    case 'cell':
      return short ? trans.__('Your teacher offers a cell: %1', short) : trans.__('Your teacher offers a cell.');
    case 'run':
      return trans.__('Your teacher shows a run: %1', short);
    default:
      return trans.__('Your teacher: %1', short);
  }
}
