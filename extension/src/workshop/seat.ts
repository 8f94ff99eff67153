/** The workshop as a learner has it: what is shared, what the teacher said and offers. */
import { Poll } from '@lumino/polling';
import { type ISignal, Signal } from '@lumino/signaling';

import { ApiError } from '../api';
import type { WorkshopApi } from '../api/workshop';
import { message } from '../sidebar/clusters';
import { trans } from '../translation';
import type { Message, Offer, Own } from '../workshop_answers';

const LOOK_MS = 1_500;
const SLOWEST_MS = 15_000;

/** The server's first answer, which is waited for while it does not come; null where it refuses, or has no such route. */
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
  /** Why the server does not tell; '' if it does. */
  trouble = '';
  /** Why what was asked for last could not be done; '' if it was. */
  complaint = '';
  private answer: Own;
  private ahead: number;
  private poll: Poll;
  private changedSignal = new Signal<this, void>(this);
  private newsSignal = new Signal<this, Message | Offer>(this);
  private told: Set<string>;

  /** `own` is the first answer: what it has is no news. */
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

  /** What the teacher has said or offered since the page was opened, each once. */
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

  /** An offer was taken or not: it goes from the list. */
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
      this.trouble = trans.__('%1: trying again.', message(error));
      this.changedSignal.emit();
      throw error; // the poll waits longer then
    }
  }
}
