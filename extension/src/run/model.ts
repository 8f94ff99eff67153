/** A run as the view needs it: built from events, the same whether it is live or long over. */
import { Signal, type ISignal } from '@lumino/signaling';

import { Log } from '../log/log';
import { ERROR, NOTE } from '../log/lines';
import { isMetrics, linesOf, parseEvent } from '../record';
import type { ErrorEvent, Event, Hang, Profile, Prompt, RankState, Run } from '../schema';
import { Collectives, type CollectivesAnswer } from '../timeline/collectives';
import type { Overview } from '../timeline/overview';
import { Samples } from '../timeline/samples';
import { Spans } from '../timeline/spans';
import { trans } from '../translation';
import { errorWords } from '../words';
import { Derived } from './derived';
import { Outputs } from './outputs';
import { inSlices } from './slices';

/** What computes results from a record: the server. */
export interface Analyst {
  profile(id: string): Promise<Profile>;
  collectives(id: string): Promise<CollectivesAnswer>;
}

const SPAN_BYTES = 20;
/** Of one meter: its time and value. */
const SAMPLE_BYTES = 16;
/** How many times, and after how long, the server is asked while it knows more spans, or fewer, than the model. */
const TRIES = 5;
const PAUSE_MS = 200;

const refuse = (): Promise<never> => Promise.reject(new Error(trans.__('there is no server to compute this')));
const NO_SERVER: Analyst = { profile: refuse, collectives: refuse };

export class RunModel {
  log = new Log();
  outputs = new Outputs();
  spans = new Spans();
  samples = new Samples();
  /** The number of metrics events; their points stay on the server. */
  metricEvents = 0;
  /** The coarse timeline of a long run, shown until all of its spans are loaded. */
  overview: Overview | null = null;
  /** Which spans belong to the same collective, for the timeline; without spans that arrived since. */
  readonly collectives: Derived<Collectives>;
  /** Where the time went, as the server computes it. */
  readonly profile: Derived<Profile>;
  /** In the order in which ranks raised. */
  errors: ErrorEvent[] = [];
  /** Lines of the record that are not events. */
  damaged = 0;
  /** Whether the whole record is loaded and nothing more will arrive. */
  isComplete = false;
  /** Bytes of the record that are loaded, and its size. */
  read = 0;
  size = 0;
  /** Increases whenever the record is dropped, to be read again from its start. */
  generation = 0;
  /** What keeps the view from being up to date, in a sentence; '' if nothing does. */
  trouble = '';
  /** Why the record cannot be shown at all. */
  refusal = '';

  private remarks = 0;
  /** The number of status events. */
  private statuses = 0;
  private states = new Map<number, RankState>();
  private releases = new Map<number, string>();
  private _changed = new Signal<this, void>(this);

  constructor(
    private _run: Run,
    api: Analyst = NO_SERVER
  ) {
    this.collectives = new Derived({
      key: () => `${this.spansKey}:${this.run.state}`,
      isComplete: () => this.isComplete,
      make: () => this.match(api)
    });
    this.profile = new Derived({
      key: () => (this.isLive ? `${this.spansKey}:${this.statuses}` : `over at ${this.run.end}`),
      isComplete: () => !this.isLive,
      make: () => api.profile(this.id)
    });
    this.setClocks();
  }

  get id(): string {
    return this._run.id;
  }

  get run(): Run {
    return this._run;
  }

  set run(run: Run) {
    this._run = run;
    this.setClocks();
    this.notify();
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  notify(): void {
    this._changed.emit();
  }

  /** Lines that ranks wrote. */
  get lineCount(): number {
    return this.log.lines.length - this.remarks + this.log.unfinished.length;
  }

  get isLive(): boolean {
    return this.run.state === 'running';
  }

  /** Ranks that took part, ascending. */
  get ranks(): number[] {
    return this.run.ranks.map(({ rank }) => rank).sort((a, b) => a - b);
  }

  /** The state of a rank. */
  stateOf(rank: number): RankState {
    const known = this.run.ranks.find(info => info.rank === rank)?.state;
    return this.states.get(rank) ?? known ?? 'running';
  }

  /** The error that explains the failure, null if the rank at fault was killed; and all other errors. */
  get failures(): { first: ErrorEvent | null; others: ErrorEvent[] } {
    const cause = this.run.failure?.rank ?? this.errors[0]?.rank;
    const first = this.errors.find(error => error.rank === cause) ?? null;
    return { first, others: this.errors.filter(error => error !== first) };
  }

  /** Why the run is stuck; null if it is not. */
  get hang(): Hang | null {
    return (this.isLive && this.run.hang) || null;
  }

  /** The open prompts of ranks, in the order of ranks. */
  get prompts(): Prompt[] {
    return (this.isLive && this.run.prompts) || [];
  }

  /** What the rank was released from because another one had failed: `released from allreduce x`; else null. */
  releaseOf(error: ErrorEvent): string | null {
    const { released } = error;
    return released ? trans.__('released from %1', String(released)) : (this.releases.get(error.rank) ?? null);
  }

  /** Take in a piece of the record; each step takes at most about a millisecond. */
  *take(text: string): Generator<void> {
    for (const line of linesOf(text)) {
      if (isMetrics(line)) {
        this.metricEvents += 1;
        yield;
        continue;
      }
      const event = parseEvent(line);
      if (event === null) {
        this.damaged += 1;
      } else if (event !== 'unknown') {
        yield* this.takeEvent(event);
      }
      yield;
    }
  }

  /** Note that the record is complete. */
  complete(): void {
    this.log.end();
    this.isComplete = true;
  }

  /** Approximate memory use: characters of log and outputs, and bytes of spans and samples. */
  get weight(): number {
    const { spans, samples } = this;
    return this.log.lines.weight + this.outputs.weight + SPAN_BYTES * spans.count + SAMPLE_BYTES * samples.count;
  }

  /** Drop all that was read from the record; it is read again when needed. */
  forget(): void {
    this.log = new Log();
    this.outputs = new Outputs();
    this.spans = new Spans();
    this.samples = new Samples();
    this.metricEvents = 0;
    this.overview = null;
    this.collectives.forget();
    this.profile.forget();
    this.setClocks();
    this.errors = [];
    this.releases.clear();
    this.damaged = 0;
    this.isComplete = false;
    this.read = 0;
    this.remarks = 0;
    this.generation += 1;
    this.notify();
  }

  private *takeEvent(event: Event): Generator<void> {
    switch (event.kind) {
      case 'log':
        yield* this.log.write(event);
        break;
      case 'display':
        this.outputs.add(event);
        break;
      case 'error':
        this.errors.push(event);
        this.remark(errorWords(event, 500), event, ERROR);
        break;
      case 'status':
        this.states.set(event.rank, event.state);
        this.statuses += 1;
        if (event.note) {
          this.remark(firstLine(event.note), event, NOTE);
        }
        if (event.note && event.state === 'released') {
          this.releases.set(event.rank, firstLine(event.note));
        }
        break;
      case 'spans':
        this.spans.take(event);
        break;
      case 'sample':
        this.samples.take(event);
        break;
      case 'metrics':
        this.metricEvents += 1;
        break;
    }
  }

  /** Match the server's reply with the spans here. If one side is ahead of the other, another try may fit. */
  private async match(api: Analyst): Promise<Collectives> {
    for (let tries = 0; tries < TRIES; tries++) {
      const found = await inSlices(Collectives.of(await api.collectives(this.id), this.spans));
      if (found) {
        return found;
      }
      await new Promise(resolve => setTimeout(resolve, PAUSE_MS));
    }
    throw new Error(trans.__('the server and this page have read different parts of the record'));
  }

  /** Identifies the loaded spans and the clock offsets that are known. */
  private get spansKey(): string {
    const ranks = this.run.ranks.map(({ rank, clock }) => `${rank} ${clock?.offset ?? 0}`).join();
    return `${this.spans.version}:${ranks}`;
  }

  private setClocks(): void {
    this.spans.setClocks(this._run.ranks);
    this.samples.setClocks(this._run.ranks);
  }

  private remark(text: string, event: Event, kind: typeof ERROR | typeof NOTE): void {
    this.remarks += 1;
    // `lost` is reported by another process: convert its time to the rank's clock, which the rank's lines have.
    const isOthers = event.kind === 'status' && event.state === 'lost';
    this.log.remark(text, event.rank, kind, event.t + (isOthers ? this.spans.offset(event.rank) : 0));
  }
}

function firstLine(text: string): string {
  return text.trim().split('\n', 1)[0].slice(0, 500);
}
