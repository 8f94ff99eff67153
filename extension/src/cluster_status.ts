// Made from lab/rankroom/cluster/cluster_status.schema.json by `npm run build:schema`; do not edit.

/** connecting, asks, submitting and lost are of the connection to a site; pending is a job in the queue. */
export type ClusterState = 'connecting' | 'asks' | 'submitting' | 'pending' | 'starting' | 'running' | 'lost' | 'ending' | 'ended' | 'failed';

/** A cluster as it stands, from what is on disk. Times are seconds since the epoch, 0 where not known. */
export interface ClusterStatus {
  name: string;
  /** The site's name; empty for this machine. */
  site: string;
  state: ClusterState;
  /** How it stands, for people; without the times that stand beside it. */
  words: string;
  /** What to do where something is wrong. */
  remedy: string;
  /** The scheduler's number; empty without one. */
  job: string;
  /** Ranks; 0 while not known. */
  size: number;
  ranks: RankStatus[];
  nodes: number;
  gpus_per_node: number;
  /** When a job that waits may start. */
  expected: number;
  /** When its time is over. */
  until: number;
  created: number;
  /** Where the job's output is, there; empty without a job. */
  log: string;
  /** Whether its ranks are on a site, reached from here. */
  is_remote: boolean;
  /** Whether a process here supervises it. */
  is_supervised: boolean;
}

export interface RankStatus {
  rank: number;
  local_rank: number;
  host: string;
  /** cpu, or cuda:<local_rank> */
  device: string;
  pid: number;
  state: 'starting' | 'ready' | 'restarting' | 'down';
  /** How the process of one that is down ended. */
  note: string;
}

export interface ClusterList {
  clusters: ClusterStatus[];
  /** The server's clock. */
  now: number;
}

/** How busy a rank is: cpu in per cent of a core, memory in bytes; null without a GPU. */
export interface Load {
  cpu?: number | null;
  memory?: number | null;
  gpu?: number | null;
  gpu_memory?: number | null;
  [key: string]: unknown;
}

/** What a start form asks for, as typed; what is empty is as the site's profile has it. */
export type StartRequest = { [key: string]: string };

/** A site to start ranks on, and what its profile asks for. */
export interface SiteChoice {
  name: string;
  description: string;
  scheduler: 'slurm' | 'pbs' | 'none';
  /** The host that ssh goes to; empty for this machine. */
  login: string;
  /** What is wrong with its profile; empty if nothing is. */
  wrong: string;
  defaults: StartRequest;
}

/** The job that would be submitted, or what is wrong with the request, by field. */
export interface DryRun {
  /** Empty where there is no job. */
  script: string;
  errors: { [key: string]: string };
}

/** What ssh asks; `secret` where the answer must not be shown. */
export interface Question {
  id: string;
  host: string;
  text: string;
  secret: boolean;
  asked: number;
}
