/** The runs that a run is compared with: each has a letter, and its curves are requested like this run's. */
import { Signal, type ISignal } from '@lumino/signaling';

import type { Run } from '../schema';
import type { Range } from '../timeline/range';
import { trans } from '../translation';
import { who } from '../words';
import type { Metric, NameInfo } from './answer';
import type { XAxis } from './choice';
import { MetricsSource, type MetricsServer, type Sought } from './source';

/** Maximum number of compared runs, as more lines could not be told apart. */
export const MOST_COMPARED = 4;
/** Maximum characters of a run's title. */
const TITLE = 40;
/** Maximum number of metrics named in the note about a run that has none of this run's. */
const NAMED = 5;
/** Milliseconds until a failed request is repeated. */
const RETRY = 5_000;
const NOT_FOUND = 404;

export interface RunsServer extends MetricsServer {
  run(id: string): Promise<Run>;
  /** Return the newest runs that have metrics, or may still get some. */
  comparable(): Promise<Run[]>;
}

/** Return the letter of a compared run. */
export function letterOf(other: number): string {
  return String.fromCharCode('A'.charCodeAt(0) + other);
}

/** Describe a run: `baseline · Nov 25, 14:03 · 2 ranks`. `isOn`: whether it is still running, if known better. */
export function runWords(run: Run, isOn = run.state === 'running'): string {
  const when = new Date(run.start / 1000).toLocaleString(undefined, {
    month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit'
  });
  const state = isOn ? [trans.__('still running')] : [];
  const title = run.name || run.title || run.id;
  // Cut only the title: the time tells runs of one cell apart.
  const short = title.length > TITLE ? `${title.slice(0, TITLE - 1)}…` : title;
  return [short, when, who(run), ...state].join(' · ');
}

export class OtherRun {
  /** Null until the server has replied. */
  run: Run | null = null;
  /** Why the run cannot be shown, in a sentence; '' if it can. */
  refusal = '';
  /** Constant, as the run's record is not read here. */
  readonly generation = 0;
  private source: MetricsSource;
  private isAsking = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly id: string,
    private server: RunsServer,
    private changed: () => void
  ) {
    this.source = new MetricsSource(this, server);
    this.source.changed.connect(changed);
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.source.dispose();
  }

  get isLive(): boolean {
    return this.source.state === 'running';
  }

  /** The run's events are not read here, so count replies: while the run is live, each makes another request due. */
  get metricEvents(): number {
    return this.source.version;
  }

  get names(): readonly NameInfo[] | null {
    return this.source.names;
  }

  get trouble(): string {
    return this.source.trouble;
  }

  metric(name: string, axis: XAxis, range: Range | null): Metric | null {
    return this.source.metric(name, axis, range);
  }

  refresh(sought: Sought): void {
    if (this.run) {
      this.source.refresh(sought);
    } else if (!this.isAsking && !this.refusal) {
      void this.ask();
    }
  }

  isReady(sought: Sought): boolean {
    return this.refusal !== '' || (this.isLive ? this.names !== null : this.source.isUpToDate(sought));
  }

  private async ask(): Promise<void> {
    this.isAsking = true;
    try {
      this.run = await this.server.run(this.id);
    } catch (error) {
      if ((error as { status?: unknown }).status === NOT_FOUND) {
        this.refusal = trans.__('its record was not found');
      } else {
        this.refusal = error instanceof Error ? error.message : String(error);
        this.timer = setTimeout(() => {
          this.refusal = '';
          this.changed();
        }, RETRY);
      }
    } finally {
      this.isAsking = false;
    }
    this.changed();
  }
}

export class Comparison {
  others: readonly OtherRun[] = [];
  private _changed = new Signal<this, void>(this);

  constructor(private server: RunsServer) {}

  /** Emitted when another run's metrics arrive, or a note about them changes. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  dispose(): void {
    this.others.forEach(other => other.dispose());
    Signal.clearData(this);
  }

  /** Set the runs to compare with; those that stay keep their data. */
  set(ids: readonly string[]): void {
    const wanted = [...new Set(ids)].slice(0, MOST_COMPARED);
    if (wanted.length === this.others.length && wanted.every((id, i) => id === this.others[i].id)) {
      return;
    }
    const before = new Map(this.others.map(other => [other.id, other]));
    this.others = wanted.map(id => before.get(id) ?? new OtherRun(id, this.server, () => this._changed.emit()));
    [...before.values()].filter(other => !this.others.includes(other)).forEach(other => other.dispose());
  }

  refresh(sought: Sought): void {
    this.others.forEach(other => other.refresh(sought));
  }

  isReady(sought: Sought): boolean {
    return this.others.every(other => other.isReady(sought));
  }

  /** Return what the compared runs have of these metrics. */
  infos(names: ReadonlySet<string>): NameInfo[] {
    return this.others.flatMap(other => other.names?.filter(({ name }) => names.has(name)) ?? []);
  }

  /** Return notes about the compared runs; `names` are this run's metrics. */
  notes(names: ReadonlySet<string>): string[] {
    return this.others.flatMap((other, i) => noteOn(other, letterOf(i), names));
  }
}

function noteOn({ id, refusal, names, trouble, isLive }: OtherRun, letter: string, ours: ReadonlySet<string>): string[] {
  if (refusal) {
    return [trans.__('not compared with %1, run %2: %3', letter, id, refusal)];
  }
  if (trouble) {
    return [trans.__('%1, run %2, is not up to date: %3; retrying', letter, id, trouble)];
  }
  if (names?.length === 0) {
    return [isLive ? trans.__('%1, run %2, has no metrics yet', letter, id) : trans.__('%1, run %2, has no metrics', letter, id)];
  }
  if (names && !names.some(({ name }) => ours.has(name))) {
    const has = names.slice(0, NAMED).map(({ name }) => name).join(', ');
    return [trans.__('%1, run %2, shares no metric with this run; its metrics include %3', letter, id, has)];
  }
  return [];
}
