// Made from lab/rankroom/workshop/workshop_answers.schema.json by `npm run build:schema`; do not edit.

export type SeatState = 'not started' | 'idle' | 'running' | 'stuck' | 'failed' | 'ended';

/** Why a learner's tile comes where it does; the first reason that applies, empty for those who need no help. */
export type Need = 'hand' | 'stuck' | 'failed' | 'silent' | 'behind' | '';

/** The exercise that was tried last. */
export interface Tried {
  name: string;
  passed: boolean;
  tries: number;
}

/** How many ranks are alive, of how many there should be. */
export interface Alive {
  alive: number;
  of: number;
}

/** The newest run: its first line, its state, and since when it has had that. */
export interface SharedRun {
  title: string;
  state: string;
  since: number;
}

/** All that a learner shares; of one who shares nothing, only the name and the hand. */
export interface Shared {
  user: string;
  shares: boolean;
  /** 0 while the hand is down. */
  hand_since: number;
  lesson: number | null;
  lesson_title: string;
  exercise: Tried | null;
  /** How many of the course's exercises were passed. */
  passed: number;
  state: SeatState;
  /** The explanation of what is stuck, or the first line of a failure. */
  why: string;
  ranks: Alive | null;
  run: SharedRun | null;
  host: string;
  job: string;
  /** When the job's time ends; 0 if unknown. */
  ends_at: number;
}

/** What was last offered to a learner. */
export interface Offered {
  what: OfferKind;
  at: number;
}

export type OfferKind = 'catch up' | 'reset';

/** A learner as the teacher sees them. */
export interface Tile {
  /** Identifies the seat, for the teacher only. */
  key: string;
  need: Need;
  /** Seconds since the seat was last written; 0 while that is no longer than usual. */
  silent_s: number;
  /** Seconds since the last notebook was closed; 0 while that is no longer than usual. */
  away_s: number;
  offered: Offered | null;
  shared: Shared;
}

/** The results of an exercise: how many learners have passed it, tried it in vain, and not tried it. */
export interface Results {
  /** Empty if there is none to choose. */
  exercise: string;
  passed: number;
  tried: number;
  not_tried: number;
  /** Those who passed, by how often they tried: 1, 2, 3, 4, and 5 or more. */
  tries: number[];
  /** Learners who share nothing. */
  silent: number;
}

export interface Timer {
  title: string;
  until: number;
}

/** A message of the teacher to all: a text, a cell to insert, or a run to look at. */
export interface Message {
  id: string;
  at: number;
  kind: 'text' | 'cell' | 'run';
  /** The text, or the title of the cell or run. */
  text: string;
  /** The source of a cell. */
  source?: string;
  /** The id of a run. */
  run?: string;
}

export interface Lesson {
  number: number;
  title: string;
  /** The name of its notebook. */
  file: string;
}

/** A workshop as its teacher sees it. */
export interface Overview {
  folder: string;
  name: string;
  /** The command by which learners join. */
  join: string;
  /** The time by the server's clock. */
  now: number;
  /** When the workshop ends; 0 if the plan does not say. */
  ends: number;
  is_over: boolean;
  /** Learners of the plan who have no seat yet. */
  absent: string[];
  /** Whether anyone may join, as the plan lists no learners. */
  is_open: boolean;
  /** What keeps the teacher from seeing all learners. */
  warnings: string[];
  /** The lesson that the median learner is at, or the one that the plan has now if that is earlier; empty before the first lesson. */
  lesson_now: string;
  tiles: Tile[];
  /** The exercises of the plan's lessons. */
  exercises: string[];
  results: Results;
  timer: Timer | null;
  messages: Message[];
}

/** An offer of the teacher to this learner, who may accept or decline it. */
export interface Offer {
  id: string;
  at: number;
  what: OfferKind;
  /** The lesson that it is about; null before the learner has begun one. */
  lesson: Lesson | null;
  /** The exercise up to which to catch up; empty for the whole lesson. */
  exercise: string;
}

/** A workshop as a learner sees it. */
export interface Own {
  /** Empty without a workshop; then everything else is empty, too. */
  role: 'learner' | '';
  folder: string;
  name: string;
  teacher: string;
  now: number;
  /** When the ranks and the server end; 0 while that is far off. */
  ends: number;
  is_over: boolean;
  /** Why the teacher does not see the seat, in a sentence. */
  trouble: string;
  shared: Shared | null;
  timer: Timer | null;
  messages: Message[];
  offers: Offer[];
}
