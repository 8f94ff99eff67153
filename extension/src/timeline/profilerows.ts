/** The rows of a profile, as the tables and the sentence about it read them. */

/** Times in microseconds; compute + data + waiting + exposed + idle is the wall, for each rank. */
export interface Profile {
  wall: number;
  ranks: RankProfile[];
  /** The longest first. */
  kinds: KindProfile[];
  /** The dearest first. */
  stragglers: StragglerProfile[];
  /** One sentence; '' if there is nothing to say. */
  diagnosis: string;
}

export interface RankProfile {
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

export interface KindProfile {
  library: string;
  op: string;
  calls: number;
  /** The mean of what a rank contributes to a call. */
  bytes: number | null;
  time: number;
  wait: number;
  transfer: number;
  /** Bytes per second. */
  bandwidth: number | null;
}

export interface StragglerProfile {
  rank: number;
  /** How many collectives it was last in, of those with two or more ranks. */
  last: number;
  of: number;
  /** How long others waited for it. */
  cost: number;
}
