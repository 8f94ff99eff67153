// Made from lab/rankroom/record/record.schema.json by `npm run build:schema`; do not edit.

/** A run in progress is running; one that has ended is done, failed or interrupted, or lost if the process that wrote its record is gone. */
export type RunState = 'running' | 'done' | 'failed' | 'interrupted' | 'lost';

export interface RankInfo {
  rank: number;
  local_rank?: number;
  host: string;
  pid: number;
  /** cpu, or cuda:<local_rank> */
  device: string;
  clock?: Clock;
  state?: RankState;
}

/** How far a rank's clock is ahead of that of the record's writer; omitted on the same host. */
export interface Clock {
  /** Microseconds to subtract from the rank's times. */
  offset: number;
  /** Maximum error of the offset, in microseconds. */
  error: number;
}

/** The state of a rank in this run. */
export type RankState = 'running' | 'ok' | 'error' | 'interrupted' | 'released' | 'lost';

/** The first failure of a run, which is taken for the root cause. */
export interface Failure {
  rank: number;
  ename: string;
  evalue: string;
  /** Line of the cell, from 1. */
  cell_line?: number | null;
}

/** Why a live run is stuck; present while some of its ranks wait and none makes progress. */
export interface Hang {
  /** When the longest wait began, in microseconds since the run's start. */
  since: number;
  /** Which ranks wait in what, and where the others are, in words. */
  text: string;
  places?: Place[];
  [key: string]: unknown;
}

/** What some ranks of a stuck run are doing, and where. */
export interface Place {
  /** Ascending. */
  ranks: number[];
  /** asks: in the debugger or in input(); waits: in a collective; still: its main thread makes no progress; busy: it computes; ended: it has finished the cell; silent: it does not reply. */
  state: 'asks' | 'waits' | 'still' | 'busy' | 'ended' | 'silent';
  /** The same in words, such as `wait in allreduce grad.3 (cell line 7)`. */
  words: string;
  /** The collective, such as `allreduce grad.3`. */
  what?: string | null;
  /** The source of the cell's line. */
  code?: string | null;
  [key: string]: unknown;
}

/** A prompt at which a rank of a live run waits for an answer. */
export interface Prompt {
  rank: number;
  /** Identifies the prompt among those of its rank; an answer names it. */
  number: number;
  /** What is asked for. debugger: the next command; input: what input() returns; password: the same, which is not shown as it is typed. */
  kind: 'debugger' | 'input' | 'password';
  /** The prompt itself, such as `ipdb> `. */
  text: string;
  /** Microseconds since the run's start. */
  since: number;
  /** Where the rank asks, such as `cell line 5` or `train.py:12`. */
  place?: string;
  [key: string]: unknown;
}

export interface Run {
  /** Increased only by a change that an older reader would misread. */
  version: number;
  id: string;
  state: RunState;
  /** Microseconds since the epoch; the zero of every event's t. */
  start: number;
  /** Microseconds since the epoch. */
  end?: number | null;
  /** The cell's first line that is neither blank nor a comment. */
  title?: string;
  /** The name given with -o. */
  name?: string | null;
  cluster: string;
  /** How many ranks the cluster has; this run uses those in `ranks`. */
  size: number;
  ranks: RankInfo[];
  failure?: Failure | null;
  hang?: Hang | null;
  /** The prompts at which ranks of a live run wait now, by rank; omitted if there are none. */
  prompts?: Prompt[];
  /** What a reader must know, such as that output is missing. */
  notes?: string[];
  /** Ids of the runs whose metrics are shown beside those of this one; omitted if there are none. */
  compare?: string[];
  /** True if ranks have reported metrics, once the run has ended; omitted if they have not. */
  has_metrics?: boolean;
  /** How many lines all ranks have printed, once the run has ended. */
  lines?: number;
  /** The process that writes this record. */
  owner?: {
    host: string;
    pid: number;
    /** Where the pid is valid: host, machine, boot and PID namespace. */
    space?: string;
    /** When the process began, in ticks since boot, which distinguishes it from a later one with the same pid. */
    began?: number;
  };
  /** The process that requested this run, such as a notebook's kernel. */
  client?: {
    host: string;
    pid: number;
  };
  [key: string]: unknown;
}

export type Event = LogEvent | DisplayEvent | ErrorEvent | StatusEvent | MarkEvent | SampleEvent | SpansEvent | MetricsEvent;

/** Consecutive output of one stream of one rank, at most 1 MiB. The text may begin or end in the middle of a line. */
export interface LogEvent {
  kind: 'log';
  rank: number;
  /** The index of the event among this rank's events of the run, from 0 and without gaps. */
  seq: number;
  /** When the first byte was written, in microseconds since the run's start. */
  t: number;
  stream: 'stdout' | 'stderr';
  /** Bytes that are not valid UTF-8 are written as \xNN. */
  text: string;
  /** The byte offset after this text in the rank's spool of the stream. */
  to?: number;
  [key: string]: unknown;
}

/** Rich output, or the value of the cell's last expression. */
export interface DisplayEvent {
  kind: 'display';
  rank: number;
  seq: number;
  t: number;
  /** A Jupyter MIME bundle. */
  data: { [key: string]: unknown };
  metadata?: { [key: string]: unknown };
  /** True for the last expression's value. */
  result?: boolean;
  display_id?: string;
  /** True if this replaces the earlier output with the same display_id. */
  update?: boolean;
  /** Of clear_output(): removes this rank's earlier displays, at once or when the next one arrives. */
  clear?: 'now' | 'next';
  [key: string]: unknown;
}

export interface ErrorEvent {
  kind: 'error';
  rank: number;
  seq: number;
  t: number;
  ename: string;
  evalue: string;
  /** Lines with ANSI colours. */
  traceback: string[];
  /** Line of the cell, from 1, nearest to the error. */
  cell_line?: number | null;
  /** The collective that was released, as another rank had failed. */
  released?: string;
  [key: string]: unknown;
}

/** A change of a rank's state: the first event of a rank has the state running, the last one how it ended. A rank that died and was restarted within the run reports running again, after a mark `away`. */
export interface StatusEvent {
  kind: 'status';
  rank: number;
  seq: number;
  t: number;
  state: RankState;
  note?: string;
  [key: string]: unknown;
}

/** A named moment. `away`: the rank has died, and the others wait for it; `regrouped`: the ranks of an elastic run connect to one another again, with the number of the meeting. */
export interface MarkEvent {
  kind: 'mark';
  rank: number;
  seq: number;
  t: number;
  name: string;
  args?: { [key: string]: unknown };
  [key: string]: unknown;
}

/** A sample of a rank's load: cpu in percent of one core, memory in bytes, gpu in percent, gpu_memory in bytes. */
export interface SampleEvent {
  kind: 'sample';
  rank: number;
  seq: number;
  t: number;
  cpu?: number;
  memory?: number;
  gpu?: number;
  gpu_memory?: number;
  [key: string]: unknown;
}

/** Many spans of one category, in columns: the i-th has the name at index name[i] of the rank's table of names, and lasts dur[i] microseconds. Spans may overlap. */
export interface SpansEvent {
  kind: 'spans';
  rank: number;
  seq: number;
  t: number;
  /** cell: a statement; setup: Rankroom sets up frameworks before the cell; import: a module is imported; wait: the main thread is blocked; collective: from the rank's call to the end of the operation; phase: a part of a collective; step: of an optimizer; data: a batch is loaded; user: from rankroom.span; op, kernel: from a profiler. */
  cat: string;
  /** The index of define[0] in the rank's table of names. */
  from?: number;
  /** Names added to the rank's table before this event's spans. */
  define?: SpanName[];
  /** Indices in the rank's table of names. */
  name: number[];
  /** The first is in microseconds since the run's start; each other one is relative to the one before it. */
  start: number[];
  /** Microseconds. */
  dur: number[];
  [key: string]: unknown;
}

/** What all spans of one name have in common. */
export interface SpanName {
  name: string;
  /** Of a collective: allreduce, broadcast, … */
  op?: string;
  tensor?: string;
  /** hvd.torch, hvd.tensorflow, dist */
  library?: string;
  /** The process set or group; omitted if it has all ranks. */
  group?: string;
  /** The group's ranks. */
  ranks?: number[];
  /** One rank's contribution. */
  bytes?: number;
  dtype?: string;
  shape?: number[];
  /** Line of the cell, from 1. */
  line?: number;
  [key: string]: unknown;
}

/** Metrics that user code has reported, in columns: the i-th point belongs to the metric at index name[i] of the rank's table of metrics. */
export interface MetricsEvent {
  kind: 'metrics';
  rank: number;
  seq: number;
  t: number;
  /** The index of define[0] in the rank's table of metrics. */
  from?: number;
  /** Names added to the rank's table before this event's points. */
  define?: string[];
  /** Indices in the rank's table of metrics. */
  name: number[];
  /** As the user gave it, otherwise counted from 0 for each name. */
  step: number[];
  /** The first is in microseconds since the run's start; each other one is relative to the one before it. */
  at: number[];
  /** Numbers, or the strings NaN, Infinity and -Infinity. */
  value: Array<number | string>;
  [key: string]: unknown;
}

/** What the overview of a long run was made from. */
export interface OverviewHead {
  /** The version of the rules. */
  rules: number;
  /** How many bytes of events.jsonl it was computed from. */
  read: number;
  /** How many spans the run has. */
  spans: number;
  /** How many invalid spans were left out, by reason. */
  dropped: { [key: string]: number };
}

/** The spans of one category of one rank, by the run's clock; short ones are merged into blocks. Collectives are divided into waits (name 0) and transfers (name 1). */
export interface OverviewLane {
  rank: number;
  cat: string;
  /** The index of define[0] in the rank's table of names. */
  from: number;
  /** Names added to the rank's table. */
  define: SpanName[];
  /** Indices in the rank's table of names; of a block, that of its longest span. */
  name: number[];
  /** Ascending. The first is in microseconds since the run's start; each other one is relative to the one before it. */
  start: number[];
  /** Microseconds. */
  dur: number[];
  /** How many microseconds of each block its spans cover; empty if they cover all. */
  busy: number[];
}

/** The metrics of a run; many points are summarized in buckets of consecutive ones. */
export interface Curves {
  /** The version of the rules. */
  rules: number;
  /** How many bytes of events.jsonl it was computed from. */
  read: number;
  /** True if each bucket holds a single point. */
  exact: boolean;
  /** How many invalid points were left out, by reason. */
  dropped: { [key: string]: number };
  /** Notes on values that are not finite, and on ranks whose values differ after having been equal. */
  notes: string[];
  /** The ranks' tables of metrics; empty if there are no parts. */
  names: RankMetrics[];
  /** Which parts of events.jsonl hold points, in the file's order; empty if the curves are exact. */
  parts: EventsPart[];
  curves: Curve[];
}

export interface RankMetrics {
  rank: number;
  define: string[];
}

/** A range of bytes of events.jsonl, in whole lines, with the range of steps and of times in it. */
export interface EventsPart {
  from: number;
  to: number;
  steps: number[];
  times: number[];
}

/** One metric of one rank. Each bucket has the mean step and time, and the mean, minimum and maximum of its finite values, which are null if it has none. */
export interface Curve {
  name: string;
  rank: number;
  points: number;
  /** The lowest and the highest. */
  steps: number[];
  /** The first and the last, in microseconds since the run's start. */
  times: number[];
  /** The step and the value of the last point; NaN and infinities are strings. */
  last?: Array<number | string>;
  /** The first values that are not finite. */
  bad: BadPoint[];
  step: number[];
  /** Microseconds since the run's start. */
  t: number[];
  mean: Array<number | null>;
  /** Empty if each bucket holds a single point; so are high and count. */
  low: Array<number | null>;
  high: Array<number | null>;
  /** Finite values. */
  count: number[];
}

export interface BadPoint {
  step: number;
  t: number;
  value: 'NaN' | 'Infinity' | '-Infinity';
}

/** Where the time of a run went; docs/profile-rules.md says how it is computed. All times are in microseconds. */
export interface Profile {
  /** The time from the first rank's start to the last one's end, without what was not recorded. */
  wall: number;
  ranks: RankTimes[];
  /** Those that took longest come first. */
  kinds: Kind[];
  /** Those that cost most come first. */
  stragglers: Straggler[];
  /** The ranks that held up the others, according to the diagnosis. */
  named: number[];
  /** One sentence; empty if there is nothing to say. */
  diagnosis: string;
  /** How many invalid spans were left out, by reason. */
  dropped: { [key: string]: number };
  loop?: Loop;
  /** Of the ranks of which there are samples; omitted if there are none. */
  memory?: RankMemory[];
  /** In order of time; omitted, as is the loop, if nothing repeats. */
  phases?: Phase[];
  /** Of profile.json only: the version of the rules. */
  rules?: number;
  /** Of profile.json only: how many bytes of events.jsonl it was computed from. */
  read?: number;
}

/** A part of a run: before its loop, the loop's first steps, the loop itself, or the rest, some of which may be between steps. Each moment belongs to one of them. */
export interface Phase {
  phase: 'startup' | 'warmup' | 'loop' | 'rest';
  /** Microseconds since the run's start. */
  begin: number;
  end: number;
  /** The time from begin to end, without that of other phases. */
  wall: number;
  /** How long ranks imported modules, on average. */
  imports: number;
  ranks: RankTimes[];
  kinds: Kind[];
  stragglers: Straggler[];
}

/** The part of a run that repeats. */
export interface Loop {
  /** What ends a step: an optimizer's step, or a collective. */
  name: string;
  /** Line of the cell, from 1. */
  line: number | null;
  /** The first step that is counted, from 1; those before it are the warm-up. */
  first: number;
  last: number;
  /** How many steps are counted. */
  steps: number;
  /** How many steps are not counted, as all ranks did something else in them as well. */
  apart: number;
  /** The duration of the steps that are counted. */
  time: number;
  /** Steps per second. */
  rate: number;
  /** Samples per second of all ranks, if spans state how many samples they process. */
  samples: number | null;
  /** The number of steps of the rank that has the fewest. */
  fewest: number;
  most: number;
  /** The ranks that held up the others in the loop. */
  named: number[];
  /** Those that took longest come first. */
  others: OtherLoop[];
}

/** Another loop of the same run, which took less time. */
export interface OtherLoop {
  name: string;
  line: number | null;
  steps: number;
  time: number;
}

/** The times of one rank: compute, data, waiting, exposed and idle add up to wall. */
export interface RankTimes {
  rank: number;
  compute: number;
  data: number;
  waiting: number;
  /** Communication that nothing overlaps. */
  exposed: number;
  idle: number;
  /** All communication, also what is overlapped by computation. */
  communication: number;
}

/** All collectives of one operation; times are means over the ranks that took part in any of them. */
export interface Kind {
  library: string;
  op: string;
  calls: number;
  /** What one rank contributes to one call, on average. */
  bytes: number | null;
  time: number;
  wait: number;
  transfer: number;
  /** Bytes per second of transfer. */
  bandwidth: number | null;
}

/** How many bytes of memory a rank used in the run, according to its samples. */
export interface RankMemory {
  rank: number;
  first: number;
  last: number;
  peak: number;
  /** How far the memory rose during the loop, or during the run if that has none; null if there are too few samples to tell. */
  rise: number | null;
  /** Of the rank's whole GPU, including what other processes use. */
  gpu_peak: number | null;
}

/** A rank that was the last to arrive in some collectives of two or more ranks. */
export interface Straggler {
  rank: number;
  last: number;
  of: number;
  /** For how much of the run's time any other rank waited because of it; this is not a mean over the ranks. */
  cost: number;
}

/** The required fields of a run, and of each kind of event. */
export const REQUIRED: { [what: string]: { [field: string]: 'number' | 'string' | 'array' | 'object' } } = {
  Run: { version: 'number', id: 'string', state: 'string', start: 'number', cluster: 'string', size: 'number', ranks: 'array' },
  log: { kind: 'string', rank: 'number', seq: 'number', t: 'number', stream: 'string', text: 'string' },
  display: { kind: 'string', rank: 'number', seq: 'number', t: 'number', data: 'object' },
  error: { kind: 'string', rank: 'number', seq: 'number', t: 'number', ename: 'string', evalue: 'string', traceback: 'array' },
  status: { kind: 'string', rank: 'number', seq: 'number', t: 'number', state: 'string' },
  mark: { kind: 'string', rank: 'number', seq: 'number', t: 'number', name: 'string' },
  sample: { kind: 'string', rank: 'number', seq: 'number', t: 'number' },
  spans: { kind: 'string', rank: 'number', seq: 'number', t: 'number', cat: 'string', name: 'array', start: 'array', dur: 'array' },
  metrics: { kind: 'string', rank: 'number', seq: 'number', t: 'number', name: 'array', step: 'array', at: 'array', value: 'array' }
};
