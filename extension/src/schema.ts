// Made from lab/rankroom/record/record.schema.json by `npm run build:schema`; do not edit.

/** live: running; ended: done, failed, interrupted; lost: the process that wrote the record is gone. */
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

/** How a rank's clock differs from that of the run's writer; left out on the same host. */
export interface Clock {
  /** Microseconds to subtract from the rank's times. */
  offset: number;
  /** Microseconds that the offset may be wrong by, at most. */
  error: number;
}

/** Where a rank stands in this run. */
export type RankState = 'running' | 'ok' | 'error' | 'interrupted' | 'released' | 'lost';

/** The first failure of a run: the root cause. */
export interface Failure {
  rank: number;
  ename: string;
  evalue: string;
  /** Line of the cell, from 1. */
  cell_line?: number | null;
}

/** Why a live run is stuck; there while some of its ranks wait and nothing moves. */
export interface Hang {
  /** Microseconds since the run's start: when the longest wait began. */
  since: number;
  /** Who waits in what, and where the others are, in words. */
  text: string;
  places?: Place[];
  [key: string]: unknown;
}

/** Where ranks of a run that is stuck stand. */
export interface Place {
  /** Ascending. */
  ranks: number[];
  /** asks: in the debugger, or in input(); waits: in a collective; still: its main thread does not move; busy: it computes; ended: the cell is over there; silent: it does not answer. */
  state: 'asks' | 'waits' | 'still' | 'busy' | 'ended' | 'silent';
  /** Where they stand, such as `wait in allreduce grad.3 (cell line 7)`. */
  words: string;
  /** The collective, such as `allreduce grad.3`. */
  what?: string | null;
  /** The source of the cell's line. */
  code?: string | null;
  [key: string]: unknown;
}

/** What a rank of a live run asks, until somebody answers. */
export interface Prompt {
  rank: number;
  /** Tells it from the rank's others: an answer is for this one. */
  number: number;
  /** debugger: the next command; input: what input() returns; password: the same, not to be shown. */
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
  /** Raised only by a change that an older reader would misread. */
  version: number;
  id: string;
  state: RunState;
  /** Microseconds since the epoch; the zero of every event's t. */
  start: number;
  /** Microseconds since the epoch. */
  end?: number | null;
  /** First line of the cell that says something. */
  title?: string;
  /** The name given with -o. */
  name?: string | null;
  cluster: string;
  /** Ranks in the cluster, of which this run used those in `ranks`. */
  size: number;
  ranks: RankInfo[];
  failure?: Failure | null;
  hang?: Hang | null;
  /** What ranks of a live run ask now, by rank; left out if nothing. */
  prompts?: Prompt[];
  /** What the reader must know: features missing, output missing. */
  notes?: string[];
  /** Ids of the runs whose metrics are shown beside those of this one; left out if none. */
  compare?: string[];
  /** True if ranks reported some, once ended; left out if none did. */
  has_metrics?: boolean;
  /** Lines of output of all ranks, once ended. */
  lines?: number;
  /** The process that writes this record. */
  owner?: {
    host: string;
    pid: number;
    /** Where that pid counts: host, machine, boot and PID namespace. */
    space?: string;
    /** When that process began, in ticks since boot: tells it from a later one with the same pid. */
    began?: number;
  };
  /** The process that asked for this run: a notebook's kernel, say. */
  client?: {
    host: string;
    pid: number;
  };
  [key: string]: unknown;
}

export type Event = LogEvent | DisplayEvent | ErrorEvent | StatusEvent | MarkEvent | SampleEvent | SpansEvent | MetricsEvent;

/** Consecutive output of one stream of one rank. Text may begin or end in the middle of a line; at most 1 MiB. */
export interface LogEvent {
  kind: 'log';
  rank: number;
  /** Counts this rank's events of this run from 0, without gaps. */
  seq: number;
  /** Microseconds since the run's start, when the first byte was written. */
  t: number;
  stream: 'stdout' | 'stderr';
  /** UTF-8; bytes that are not are written as \xNN. */
  text: string;
  /** Byte offset in the rank's own spool of this stream, after this text. */
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
  /** Replaces the earlier output with this display_id. */
  update?: boolean;
  /** clear_output(): removes this rank's earlier displays, at once or when the next one comes. */
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
  /** The collective that ended because another rank failed. */
  released?: string;
  [key: string]: unknown;
}

/** The first event of a rank says running, its last one how it ended. One that died and was started again within the run says running once more, after a mark `away`. */
export interface StatusEvent {
  kind: 'status';
  rank: number;
  seq: number;
  t: number;
  state: RankState;
  note?: string;
  [key: string]: unknown;
}

/** A named moment: where a rank that is waited for has died, `away`; where others hear that ranks meet again, `regrouped`, with the number of the meeting. */
export interface MarkEvent {
  kind: 'mark';
  rank: number;
  seq: number;
  t: number;
  name: string;
  args?: { [key: string]: unknown };
  [key: string]: unknown;
}

/** Utilisation of a rank at a moment: cpu in percent of one core, memory in bytes, gpu in percent, gpu_memory in bytes. */
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

/** Many spans of one category in columns: the i-th is called what the rank's table of names holds at name[i], and lasts dur[i] microseconds. Overlapping spans are fine. */
export interface SpansEvent {
  kind: 'spans';
  rank: number;
  seq: number;
  t: number;
  /** cell: a statement; setup: of frameworks, by Rankroom itself before the cell; import: a module's; wait: the main thread is blocked; collective: from the rank's call to its end; phase: a part of a collective; step, data, user; op, kernel: from a profiler. */
  cat: string;
  /** The number of define[0] in the rank's table of names. */
  from?: number;
  /** Names added to the rank's table before this event's spans. */
  define?: SpanName[];
  /** Numbers in the rank's table of names. */
  name: number[];
  /** The first in microseconds since the run's start, each other one relative to the one before it. */
  start: number[];
  /** Microseconds. */
  dur: number[];
  [key: string]: unknown;
}

/** What spans of one name have in common. */
export interface SpanName {
  name: string;
  /** Of a collective: allreduce, broadcast, … */
  op?: string;
  tensor?: string;
  /** hvd.torch, hvd.tensorflow, dist */
  library?: string;
  /** The process set or group; none for all ranks. */
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

/** What user code reported of its training, in columns: the i-th point belongs to the metric that the rank's table of metrics holds at name[i]. */
export interface MetricsEvent {
  kind: 'metrics';
  rank: number;
  seq: number;
  t: number;
  /** The number of define[0] in the rank's table of metrics. */
  from?: number;
  /** Names added to the rank's table before this event's points. */
  define?: string[];
  /** Numbers in the rank's table of metrics. */
  name: number[];
  /** As the user gave it, else counted from 0 for each name. */
  step: number[];
  /** The first in microseconds since the run's start, each other one relative to the one before it. */
  at: number[];
  /** Numbers, or NaN, Infinity or -Infinity as words. */
  value: Array<number | string>;
  [key: string]: unknown;
}

/** What the overview of a long run was made from. */
export interface OverviewHead {
  /** The version of the rules. */
  rules: number;
  /** The bytes of events.jsonl that it was computed from. */
  read: number;
  /** The spans of the run. */
  spans: number;
  /** Spans that made no sense and were left out, by reason. */
  dropped: { [key: string]: number };
}

/** The spans of one category of one rank, the short ones as blocks of several; on the run's clock. Collectives are cut: name 0 is a wait, name 1 a transfer. */
export interface OverviewLane {
  rank: number;
  cat: string;
  /** The number of define[0] in the rank's table of names. */
  from: number;
  /** Names added to the rank's table. */
  define: SpanName[];
  /** Numbers in the rank's table of names; of a block, the longest span's. */
  name: number[];
  /** Ascending: the first in microseconds since the run's start, each other one relative to the one before it. */
  start: number[];
  /** Microseconds. */
  dur: number[];
  /** Microseconds that are covered; empty if all are. */
  busy: number[];
}

/** The metrics of a run, in buckets of points that followed one another where there are many. */
export interface Curves {
  /** The version of the rules. */
  rules: number;
  /** The bytes of events.jsonl that it was computed from. */
  read: number;
  /** True if each bucket is a point. */
  exact: boolean;
  /** Points that made no sense and were left out, by reason. */
  dropped: { [key: string]: number };
  /** Values that are no finite numbers, and ranks that differ where they had agreed. */
  notes: string[];
  /** The ranks' tables of metrics; empty without parts. */
  names: RankMetrics[];
  /** Where in events.jsonl points are, in the file's order; empty if the curves are exact. */
  parts: EventsPart[];
  curves: Curve[];
}

export interface RankMetrics {
  rank: number;
  define: string[];
}

/** Whole lines of events.jsonl from one byte to another, and the least and the largest step and time in them. */
export interface EventsPart {
  from: number;
  to: number;
  steps: number[];
  times: number[];
}

/** One metric of one rank: each bucket's mean step and time, and the mean, lowest and highest of its finite values; null if there is none. */
export interface Curve {
  name: string;
  rank: number;
  points: number;
  /** The least and the largest. */
  steps: number[];
  /** The first and the last, in microseconds since the run's start. */
  times: number[];
  /** The step and the value of the last point; NaN and infinities by name. */
  last?: Array<number | string>;
  /** The first of the values that are not finite. */
  bad: BadPoint[];
  step: number[];
  /** Microseconds since the run's start. */
  t: number[];
  mean: Array<number | null>;
  /** Empty if each bucket is a point, as are high and count. */
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
  /** How long the run lasted on any rank. */
  wall: number;
  ranks: RankTimes[];
  /** The longest first. */
  kinds: Kind[];
  /** The costliest first. */
  stragglers: Straggler[];
  /** The ranks that the diagnosis says held the others up. */
  named: number[];
  /** One sentence; empty if there is nothing to say. */
  diagnosis: string;
  /** Spans that made no sense and were left out, by reason. */
  dropped: { [key: string]: number };
  loop?: Loop;
  /** Of the ranks that were sampled; left out if none was. */
  memory?: RankMemory[];
  /** In order of time; left out, as is the loop, if nothing repeats. */
  phases?: Phase[];
  /** Of profile.json: the version of the rules. */
  rules?: number;
  /** Of profile.json: the bytes of events.jsonl that it was computed from. */
  read?: number;
}

/** A part of a run: before its loop, the loop's first steps, the loop, and the rest, which may be between steps, too. Every moment is in one of them. */
export interface Phase {
  phase: 'startup' | 'warmup' | 'loop' | 'rest';
  /** Microseconds since the run's start. */
  begin: number;
  end: number;
  /** From begin to end, without what is of other phases. */
  wall: number;
  /** How long a rank imported modules, on average. */
  imports: number;
  ranks: RankTimes[];
  kinds: Kind[];
  stragglers: Straggler[];
}

/** The part of a run that repeats. */
export interface Loop {
  /** What ends a step: an optimizer's step, or a collective. */
  name: string;
  /** Of the cell, from 1. */
  line: number | null;
  /** The first step that counts, from 1; those before it are the warm-up. */
  first: number;
  last: number;
  /** How many of them count. */
  steps: number;
  /** How many do not, as all ranks did something else as well. */
  apart: number;
  /** Of the steps that count. */
  time: number;
  /** Steps per second. */
  rate: number;
  /** Samples per second of all ranks, if a span says how many it is of. */
  samples: number | null;
  /** Steps of the rank with the fewest. */
  fewest: number;
  most: number;
  /** The ranks that held the others up in it. */
  named: number[];
  /** The longest first. */
  others: OtherLoop[];
}

/** A shorter loop of the same run. */
export interface OtherLoop {
  name: string;
  line: number | null;
  steps: number;
  time: number;
}

/** One rank: compute, data, waiting, exposed and idle add up to the wall. */
export interface RankTimes {
  rank: number;
  compute: number;
  data: number;
  waiting: number;
  /** Communication that nothing overlaps. */
  exposed: number;
  idle: number;
  /** With what is overlapped. */
  communication: number;
}

/** All collectives of one operation; times are the mean of the ranks that took part in any. */
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

/** The bytes that a rank had in memory over the run, by its samples. */
export interface RankMemory {
  rank: number;
  first: number;
  last: number;
  peak: number;
  /** How far it rose all through the loop, or the run if it has none; null if there are too few samples to tell. */
  rise: number | null;
  /** Of its whole GPU, with what other processes use. */
  gpu_peak: number | null;
}

/** A rank that came last in some collectives of two or more ranks. */
export interface Straggler {
  rank: number;
  last: number;
  of: number;
  /** How long any other rank waited because of it: time of the run, not a mean of the ranks. */
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
