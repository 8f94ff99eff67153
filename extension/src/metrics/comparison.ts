/** The runs that a run is compared with: each has a letter, and its curves are asked for as this run's are. */
import { Signal, type ISignal } from '@lumino/signaling';

import type { Run } from '../schema';
import type { Range } from '../timeline/range';
import { trans } from '../translation';
import { who } from '../words';
import type { Metric, NameInfo } from './answer';
import type { XAxis } from './choice';
import { MetricsSource, type MetricsServer, type Sought } from './source';

/** More lines are not told apart. */
export const MOST_COMPARED = 4;
/** Characters of a run's name. */
const TITLE = 40;
/** Metrics of a run that has none of those that are shown. */
const NAMED = 5;
/** Milliseconds until a server that did not answer is asked again. */
const RETRY = 5_000;
const NOT_FOUND = 404;

export interface RunsServer extends MetricsServer {
  run(id: string): Promise<Run>;
  /** The newest runs that have metrics, or may come to have some. */
  comparable(): Promise<Run[]>;
}

/** The name of a run among those that are compared. */
export function letterOf(other: number): string {
  return String.fromCharCode('A'.charCodeAt(0) + other);
}

/** `baseline · Nov 25, 14:03 · 2 ranks`; it may have ended since. */
export function runWords(run: Run, isOn = run.state === 'running'): string {
  const when = new Date(run.start / 1000).toLocaleString(undefined, {
    month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit'
  });
  const state = isOn ? [trans.__('still running')] : [];
  const title = run.name || run.title || run.id;
  // Cut here: when it was tells runs of one cell apart.
  const short = title.length > TITLE ? `${title.slice(0, TITLE - 1)}…` : title;
  return [short, when, who(run), ...state].join(' · ');
}

export class OtherRun {
  /** Null until the server has said what it is. */
  run: Run | null = null;
  /** Why it cannot be shown, in a sentence. */
  refusal = '';
  /** Its record is not read here, so never again either. */
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

  /** Its events are not read here: while it is on, every answer may be followed by another. */
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
        this.refusal = trans.__('there is no record of it here');
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

  /** Another run's metrics are there, or something is to be said of them. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  dispose(): void {
    this.others.forEach(other => other.dispose());
    Signal.clearData(this);
  }

  /** Compare with these, and no others; of those that stay all is kept that is known. */
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

  /** What the others have of these metrics. */
  infos(names: ReadonlySet<string>): NameInfo[] {
    return this.others.flatMap(other => other.names?.filter(({ name }) => names.has(name)) ?? []);
  }

  /** What is to be said of the others; `names` are this run's metrics. */
  notes(names: ReadonlySet<string>): string[] {
    return this.others.flatMap((other, i) => noteOn(other, letterOf(i), names));
  }
}

function noteOn({ id, refusal, names, trouble, isLive }: OtherRun, letter: string, ours: ReadonlySet<string>): string[] {
  if (refusal) {
    return [trans.__('not compared with %1, run %2: %3', letter, id, refusal)];
  }
  if (trouble) {
    return [trans.__('%1, run %2, is not up to date: %3; trying again', letter, id, trouble)];
  }
  if (names?.length === 0) {
    return [isLive ? trans.__('%1, run %2, has no metrics yet', letter, id) : trans.__('%1, run %2, has no metrics', letter, id)];
  }
  if (names && !names.some(({ name }) => ours.has(name))) {
    const has = names.slice(0, NAMED).map(({ name }) => name).join(', ');
    return [trans.__('%1, run %2, has none of this run’s metrics: it has %3', letter, id, has)];
  }
  return [];
}
