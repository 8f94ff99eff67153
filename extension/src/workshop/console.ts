/** A workshop as the server last reported it to its teacher, and the teacher's requests. */
import { Poll } from '@lumino/polling';
import { type ISignal, Signal } from '@lumino/signaling';

import { ApiError } from '../api';
import type { WorkshopApi } from '../api/workshop';
import { message } from '../sidebar/clusters';
import type { OfferKind, Overview } from '../workshop_answers';
import { trans } from '../translation';

/** A seat is written at most 2.5 s after a change, and the teacher is to see it within 3 s. */
const LOOK_MS = 500;
const SLOWEST_MS = 10_000;

export class Console {
  overview: Overview | null = null;
  /** Why the workshop cannot be fetched, or no longer; '' if it can. */
  trouble = '';
  /** Whether the trouble will not pass by itself, so that another folder must be chosen. */
  isRefused = false;
  private ahead = 0;
  private isSeen = true;
  private poll: Poll;
  private changedSignal = new Signal<this, void>(this);

  constructor(
    readonly api: WorkshopApi,
    /** The workshop's folder; '' is the one that the server knows. */
    private folderAsked: string
  ) {
    this.poll = new Poll({
      auto: false,
      name: 'rankroom:workshop-console',
      factory: () => this.fetch(),
      frequency: { interval: LOOK_MS, backoff: true, max: SLOWEST_MS },
      standby: 'when-hidden'
    });
  }

  get changed(): ISignal<this, void> {
    return this.changedSignal;
  }

  /** Seconds since the epoch, by the server's clock. */
  get now(): number {
    return Date.now() / 1000 + this.ahead;
  }

  get folder(): string {
    return this.folderAsked;
  }

  set folder(folder: string) {
    this.folderAsked = folder;
    this.exercise = '';
    this.overview = null;
    this.trouble = '';
    this.isRefused = false;
    this.changedSignal.emit();
    void this.poll.refresh();
  }

  /** The exercise whose results are shown; '' is the one that most learners tried last. */
  exercise = '';

  /** Set whether the console is visible: the server is polled only then. */
  setSeen(isSeen: boolean): void {
    this.isSeen = isSeen;
    void (isSeen ? this.poll.start() : this.poll.stop());
  }

  choose(exercise: string): void {
    this.exercise = exercise;
    void this.poll.refresh();
  }

  /** Send a message to all learners; return what was done, in a sentence. Throws ApiError with what is wrong. */
  async say(text: string): Promise<string> {
    return this.then(this.api.say(this.openFolder, text));
  }

  async offerCell(source: string, title: string): Promise<string> {
    return this.then(this.api.offerCell(this.openFolder, source, title));
  }

  async setTimer(minutes: string, title: string): Promise<string> {
    return this.then(this.api.timer(this.openFolder, minutes, title));
  }

  async showRun(run: string): Promise<string> {
    return this.then(this.api.showRun(this.openFolder, run));
  }

  /** Offer something to one learner; a catch-up goes as far as the exercise whose results are shown. */
  async offer(user: string, what: OfferKind): Promise<string> {
    const exercise = what === 'catch up' ? this.exercise || (this.overview?.results.exercise ?? '') : '';
    return this.then(this.api.offer(this.openFolder, user, what, exercise));
  }

  dispose(): void {
    this.poll.dispose();
    Signal.clearData(this);
  }

  /** The folder that is shown, even if the server chose it. */
  private get openFolder(): string {
    return this.overview?.folder ?? this.folderAsked;
  }

  private async then(asked: Promise<string>): Promise<string> {
    const said = await asked;
    if (this.isSeen) {
      void this.poll.refresh(); // which would start it again
    }
    return said;
  }

  private async fetch(): Promise<void> {
    const { folderAsked: asked } = this;
    try {
      const overview = await this.api.overview(asked, this.exercise);
      if (asked !== this.folderAsked) {
        return; // another one was chosen meanwhile
      }
      this.ahead = overview.now - Date.now() / 1000;
      this.overview = overview;
      this.trouble = '';
      this.isRefused = false;
      this.changedSignal.emit();
    } catch (error) {
      if (asked === this.folderAsked) {
        this.isRefused = error instanceof ApiError && error.status >= 400 && error.status < 500;
        this.trouble = this.isRefused ? message(error) : trans.__('%1: retrying.', message(error));
        this.changedSignal.emit();
      }
      throw error; // makes the poll back off
    }
  }
}
