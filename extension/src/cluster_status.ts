// Made from lab/rankroom/cluster/cluster_status.schema.json by `npm run build:schema`; do not edit.

/** connecting, asks, submitting and lost concern the connection to a site; a job in the queue is pending. */
export type ClusterState = 'connecting' | 'asks' | 'submitting' | 'pending' | 'starting' | 'running' | 'lost' | 'ending' | 'ended' | 'failed';

/** The status of a cluster, from its files. Times are in seconds since the epoch, 0 if unknown. */
export interface ClusterStatus {
  name: string;
  /** The site's name; empty for this machine. */
  site: string;
  state: ClusterState;
  /** The state in words, without the times, which are shown beside it. */
  words: string;
  /** What to do if something is wrong; otherwise empty. */
  remedy: string;
  /** The scheduler's id of the job; empty without a job. */
  job: string;
  /** How many ranks; 0 while unknown. */
  size: number;
  ranks: RankStatus[];
  nodes: number;
  gpus_per_node: number;
  /** When a pending job is expected to start. */
  expected: number;
  /** When the job's time ends. */
  until: number;
  created: number;
  /** The file of the job's output, on the site; empty without a job. */
  log: string;
  /** Whether its ranks are on a site that this machine connects to. */
  is_remote: boolean;
  /** Whether a process on this machine supervises it. */
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
  /** How the process ended of a rank that is down. */
  note: string;
}

export interface ClusterList {
  clusters: ClusterStatus[];
  /** The time by the server's clock. */
  now: number;
}

/** The load of a rank: cpu in percent of one core, memory in bytes; what concerns a GPU is null without one. */
export interface Load {
  cpu?: number | null;
  memory?: number | null;
  gpu?: number | null;
  gpu_memory?: number | null;
  [key: string]: unknown;
}

/** What was typed into the form that starts ranks; for empty fields, the site's profile holds. */
export type StartRequest = { [key: string]: string };

/** A site on which ranks can be started, and what its profile requests. */
export interface SiteChoice {
  name: string;
  description: string;
  scheduler: 'slurm' | 'pbs' | 'none';
  /** The host that ssh connects to; empty for this machine. */
  login: string;
  /** What is wrong with its profile; empty if nothing is. */
  wrong: string;
  defaults: StartRequest;
}

/** The job that would be submitted, or what is wrong with the request, by field. */
export interface DryRun {
  /** The job's script; empty if there is no job. */
  script: string;
  errors: { [key: string]: string };
}

/** A question of ssh's; `secret` if the answer must not be shown. */
export interface Question {
  id: string;
  host: string;
  text: string;
  secret: boolean;
  asked: number;
}
