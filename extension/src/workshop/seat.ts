/** The workshop as a learner sees it: what is shared, and what the teacher says and offers. */
import { Poll } from '@lumino/polling';
import { type ISignal, Signal } from '@lumino/signaling';

import { ApiError } from '../api';
import type { WorkshopApi } from '../api/workshop';
import { message } from '../sidebar/clusters';
import { trans } from '../translation';
import type { Message, Offer, Own } from '../workshop_answers';

const LOOK_MS = 1_500;
const SLOWEST_MS = 15_000;

/** Return the server's first reply, after retries if it does not respond; null if it refuses or lacks the route. */
export async function firstAnswer(api: WorkshopApi, waitMs = LOOK_MS): Promise<Own | null> {
  try {
    return await api.own();
  } catch (error) {
    if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
      return null;
    }
  }
  await new Promise(resolve => setTimeout(resolve, waitMs));
  return firstAnswer(api, Math.min(2 * waitMs, SLOWEST_MS));
}

export class Seat {
  /** Why the server does not reply, or the teacher does not see the seat; '' if all is well. */
  trouble = '';
  /** Why the last request failed; '' if it did not. */
  complaint = '';
  private answer: Own;
  private ahead: number;
  private poll: Poll;
  private changedSignal = new Signal<this, void>(this);
  private newsSignal = new Signal<this, Message | Offer>(this);
  private told: Set<string>;

  /** `own` is the first reply: its messages and offers are not news. */
  constructor(
    readonly api: WorkshopApi,
    own: Own
  ) {
    this.answer = own;
    this.ahead = own.now - Date.now() / 1000;
    this.told = new Set([...own.messages, ...own.offers].map(({ id }) => id));
    this.poll = new Poll({
      name: 'rankroom:workshop-seat',
      factory: () => this.fetch(),
      frequency: { interval: LOOK_MS, backoff: true, max: SLOWEST_MS },
      standby: 'when-hidden'
    });
  }

  get own(): Own {
    return this.answer;
  }

  get now(): number {
    return Date.now() / 1000 + this.ahead;
  }

  get changed(): ISignal<this, void> {
    return this.changedSignal;
  }

  /** Emits each message and offer of the teacher since the page was opened, once. */
  get news(): ISignal<this, Message | Offer> {
    return this.newsSignal;
  }

  get isHandUp(): boolean {
    return (this.answer.shared?.hand_since ?? 0) > 0;
  }

  hand(isUp: boolean): Promise<void> {
    return this.ask(this.api.hand(isUp));
  }

  share(isOn: boolean): Promise<void> {
    return this.ask(this.api.share(isOn));
  }

  /** Accept or decline an offer; either removes it from the list. */
  close(offer: Offer, isTaken: boolean): Promise<void> {
    return this.ask(this.api.answer(offer, isTaken));
  }

  complain(sentence: string): void {
    this.complaint = sentence;
    this.changedSignal.emit();
  }

  private async ask(asked: Promise<string>): Promise<void> {
    try {
      await asked;
      this.complaint = '';
    } catch (error) {
      this.complaint = message(error);
    }
    this.changedSignal.emit();
    await this.poll.refresh();
  }

  private async fetch(): Promise<void> {
    try {
      const own = await this.api.own();
      this.trouble = own.trouble;
      if (own.role === 'learner') {
        this.answer = own;
        this.ahead = own.now - Date.now() / 1000;
        for (const each of [...own.messages, ...own.offers]) {
          if (!this.told.has(each.id)) {
            this.told.add(each.id);
            this.newsSignal.emit(each);
          }
        }
      }
      this.changedSignal.emit();
    } catch (error) {
      this.trouble = trans.__('%1: retrying.', message(error));
      this.changedSignal.emit();
      throw error; // makes the poll back off
    }
  }
}
