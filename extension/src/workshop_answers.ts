// Made from lab/rankroom/workshop/workshop_answers.schema.json by `npm run build:schema`; do not edit.

export type SeatState = 'not started' | 'idle' | 'running' | 'stuck' | 'failed' | 'ended';

/** Why a learner stands where they do among the tiles; the first that holds, empty for those who need no help. */
export type Need = 'hand' | 'stuck' | 'failed' | 'silent' | 'behind' | '';

/** The exercise that was tried last. */
export interface Tried {
  name: string;
  passed: boolean;
  tries: number;
}

/** Ranks that are there, of those there should be. */
export interface Alive {
  alive: number;
  of: number;
}

/** The newest run: its first line, how it stands, and since when. */
export interface SharedRun {
  title: string;
  state: string;
  since: number;
}

/** What a learner shares, and all of it. Of one who does not, only the name and the hand are told. */
export interface Shared {
  user: string;
  shares: boolean;
  /** 0 while the hand is down. */
  hand_since: number;
  lesson: number | null;
  lesson_title: string;
  exercise: Tried | null;
  /** How many exercises of the course. */
  passed: number;
  state: SeatState;
  /** The explanation of what is stuck, or the first line of a failure. */
  why: string;
  ranks: Alive | null;
  run: SharedRun | null;
  host: string;
  job: string;
  /** When the job's time is over; 0 where that is not known. */
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
  /** Stands for the seat, to the teacher. */
  key: string;
  need: Need;
  /** Seconds since the seat was last written; 0 as long as that is usual. */
  silent_s: number;
  /** Seconds since the last notebook was closed; 0 as long as that is usual. */
  away_s: number;
  offered: Offered | null;
  shared: Shared;
}

/** How an exercise went: so many passed, tried in vain, and have not tried it. */
export interface Results {
  /** Empty where there is none to choose. */
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

/** What the teacher said to all: a text, a cell to insert, or a run to look at. */
export interface Message {
  id: string;
  at: number;
  kind: 'text' | 'cell' | 'run';
  /** The text, or the title of the cell or run. */
  text: string;
  /** Of a cell. */
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
  /** What learners type to come in. */
  join: string;
  /** The server's clock. */
  now: number;
  /** 0 where the plan has no end. */
  ends: number;
  is_over: boolean;
  /** Learners of the plan who have no seat yet. */
  absent: string[];
  /** Whether anybody may come: the plan lists nobody. */
  is_open: boolean;
  /** What keeps the teacher from seeing everybody. */
  warnings: string[];
  /** Where the room is, and no further than the plan; empty before the first lesson. */
  lesson_now: string;
  tiles: Tile[];
  /** Those of the plan's lessons. */
  exercises: string[];
  results: Results;
  timer: Timer | null;
  messages: Message[];
}

/** What the teacher offers this learner, who takes it or not. */
export interface Offer {
  id: string;
  at: number;
  what: OfferKind;
  /** Which one; null before the learner has begun one. */
  lesson: Lesson | null;
  /** Catch up as far as that; empty: with all of the lesson. */
  exercise: string;
}

/** A workshop as a learner sees it. */
export interface Own {
  /** Empty without a workshop: all else is empty then. */
  role: 'learner' | '';
  folder: string;
  name: string;
  teacher: string;
  now: number;
  /** When ranks and server end; 0 while that is far off. */
  ends: number;
  is_over: boolean;
  /** Why the teacher does not see the seat, in a sentence. */
  trouble: string;
  shared: Shared | null;
  timer: Timer | null;
  messages: Message[];
  offers: Offer[];
}
