/** The clusters as the server last reported them, and the actions on them; nothing is persisted here. */
import { Poll } from '@lumino/polling';
import { type ISignal, Signal } from '@lumino/signaling';

import { ApiError } from '../api';
import type { Act, ClustersApi } from '../api/clusters';
import type { ClusterStatus, Load, Question, StartRequest } from '../cluster_status';
import type { Run } from '../schema';
import { trans } from '../translation';
import { isLive, isMoving } from './phrases';

const SOON_MS = 1_000;
/** How long after a request its effect may take to show. */
const AWAITED_MS = 5_000;
const LOOK_MS = 2_000;
const SLOWEST_MS = 30_000;
const RUNS = 40;

export class Clusters {
  /** Newest first. */
  all: readonly ClusterStatus[] = [];
  /** False until the server's first reply. */
  isKnown = false;
  /** Why the clusters cannot be fetched; '' if they can. */
  trouble = '';
  /** The newest runs, as of when the sidebar was last visible. */
  runs: readonly Run[] = [];
  areRunsKnown = false;
  /** Why the runs cannot be fetched; '' if they can. */
  runsTrouble = '';
  questions: readonly Question[] = [];
  private loads = new Map<string, Map<number, Load>>();
  /** The clusters whose load has been requested. */
  private looking = new Set<string>();
  private underWay = new Map<string, Act>();
  private complaints = new Map<string, string>();
  /** Seconds that the server's clock is ahead of this one. */
  private ahead = 0;
  private intervalMs = 3_000;
  /** Until then, the effect of a request may yet show; milliseconds since the epoch. */
  private awaitedUntil = 0;
  private poll: Poll;
  private looks: Poll;
  private changedSignal = new Signal<this, void>(this);

  constructor(readonly api: ClustersApi) {
    this.poll = new Poll({
      auto: false,
      name: 'rankroom:clusters',
      factory: () => this.fetch(),
      frequency: { interval: this.intervalMs, backoff: true, max: SLOWEST_MS },
      standby: 'when-hidden'
    });
    this.looks = new Poll({
      auto: false,
      name: 'rankroom:loads',
      factory: () => this.look(),
      frequency: { interval: LOOK_MS, backoff: true, max: SLOWEST_MS },
      standby: 'when-hidden'
    });
  }

  /** Emitted when anything here has changed. */
  get changed(): ISignal<this, void> {
    return this.changedSignal;
  }

  /** Seconds since the epoch, by the server's clock. */
  get now(): number {
    return Date.now() / 1000 + this.ahead;
  }

  loadOf(card: ClusterStatus): ReadonlyMap<number, Load> {
    return this.loads.get(card.name) ?? new Map<number, Load>();
  }

  /** The action on a cluster that is in progress in this window; null if there is none. */
  actOn(card: ClusterStatus): Act | null {
    return this.underWay.get(card.name) ?? null;
  }

  /** Which action on a cluster failed, and why; '' if none did. */
  complaintOf(card: ClusterStatus): string {
    return this.complaints.get(card.name) ?? '';
  }

  /** Set how often the server is polled. */
  setInterval(seconds: number): void {
    this.intervalMs = seconds * 1000;
    this.pace();
  }

  /** Start to poll the server. */
  watch(): void {
    void this.poll.start();
  }

  refresh(): Promise<void> {
    return this.poll.refresh();
  }

  /** Set whether the sidebar is visible: loads of ranks and runs are fetched only then. */
  setSeen(isSeen: boolean): void {
    void (isSeen ? this.looks.start() : this.looks.stop());
  }

  /** Start ranks; return the cluster's name. Throws ApiError with what the server says is wrong. */
  async start(site: string, request: StartRequest): Promise<string> {
    const name = await this.api.start(site, request);
    this.complaints.delete(name);
    this.awaitedUntil = Date.now() + AWAITED_MS;
    await this.refresh();
    return name;
  }

  /** Act on a cluster; an error is kept until the next action on it, or until it is dismissed. */
  async act(card: ClusterStatus, act: Act, request: StartRequest = {}): Promise<void> {
    if (this.underWay.has(card.name)) {
      return;
    }
    this.underWay.set(card.name, act);
    this.complaints.delete(card.name);
    this.tell();
    try {
      await this.api.act(card.name, act, request);
    } catch (error) {
      this.complaints.set(card.name, complaint(act, message(error)));
    } finally {
      this.underWay.delete(card.name);
      this.awaitedUntil = Date.now() + AWAITED_MS;
      this.tell();
    }
    await this.refresh();
  }

  putAway(card: ClusterStatus): void {
    this.complaints.delete(card.name);
    this.tell();
  }

  /** Answer a question of ssh; return whether the answer arrived, or is no longer needed. */
  async answer(question: Question, text: string | null): Promise<boolean> {
    let isDone = true;
    try {
      await this.api.answer(question.id, text);
    } catch (error) {
      // A refusal means that another window was quicker, unless this one was only logged out.
      isDone = error instanceof ApiError && error.status >= 400 && error.status < 500 && !error.isLoggedOut;
    }
    if (!isDone) {
      // Whether the question is still open is unknown until the server's next reply.
      this.questions = this.questions.filter(each => each.id !== question.id);
    }
    await this.refresh();
    return isDone;
  }

  private async fetch(): Promise<void> {
    try {
      const [{ clusters, now }, questions] = await Promise.all([this.api.clusters(), this.api.questions()]);
      this.ahead = now - Date.now() / 1000;
      this.all = clusters;
      this.questions = questions;
      // A later cluster of the same name must not inherit the complaint.
      const names = new Set(clusters.map(card => card.name));
      [...this.complaints.keys()].filter(name => !names.has(name)).forEach(name => this.complaints.delete(name));
      this.isKnown = true;
      this.trouble = '';
      this.pace();
      this.tell();
    } catch (error) {
      const isAbsent = error instanceof ApiError && error.status === 404;
      this.trouble = isAbsent
        ? trans.__(
          'This Jupyter server lacks Rankroom’s routes: run “%1” and restart it. If that has been done, its log says why they did not load.',
          'jupyter server extension enable rankroom'
        )
        : trans.__('%1: retrying.', message(error));
      this.tell();
      throw error; // makes the poll back off
    }
  }

  private async look(): Promise<void> {
    const live = this.all.filter(card => isLive(card) && card.state !== 'lost');
    const names = new Set(live.map(card => card.name));
    this.loads = new Map([...this.loads].filter(([name]) => names.has(name)));
    // Each for itself: a cluster that does not answer must not delay the others, nor the runs.
    live.filter(card => !this.looking.has(card.name)).forEach(card => void this.lookAt(card));
    await this.fetchRuns();
    if (this.runsTrouble) {
      throw new Error(this.runsTrouble); // makes the poll back off
    }
  }

  private async lookAt(card: ClusterStatus): Promise<void> {
    this.looking.add(card.name);
    try {
      this.loads.set(card.name, await this.api.load(card));
    } catch {
      this.loads.delete(card.name);
    } finally {
      this.looking.delete(card.name);
    }
    this.tell();
  }

  private async fetchRuns(): Promise<void> {
    try {
      const runs = await this.api.runs(RUNS);
      this.runs = runs.sort((a, b) => b.start - a.start).slice(0, RUNS);
      this.areRunsKnown = true;
      this.runsTrouble = '';
    } catch (error) {
      this.runsTrouble = trans.__('%1: retrying.', message(error));
    }
    this.tell();
  }

  /** Poll more often while something is in progress. */
  private pace(): void {
    const isAwaited = this.all.some(isMoving) || Date.now() < this.awaitedUntil;
    const interval = isAwaited ? Math.min(SOON_MS, this.intervalMs) : this.intervalMs;
    if (interval !== this.poll.frequency.interval) {
      this.poll.frequency = { ...this.poll.frequency, interval, max: Math.max(SLOWEST_MS, interval) };
    }
  }

  private tell(): void {
    this.changedSignal.emit();
  }
}

export function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function complaint(act: Act, why: string): string {
  switch (act) {
    case 'stop':
      return trans.__('stop: %1', why);
    case 'restart':
      return trans.__('restart: %1', why);
    case 'resize':
      return trans.__('resize: %1', why);
    case 'interrupt':
      return trans.__('interrupt: %1', why);
  }
}
