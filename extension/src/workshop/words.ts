/** The phrases that describe learners and what they share; usable without a browser. */
import { trans } from '../translation';
import type { Need, Offer, Overview, Shared, Tile, Timer } from '../workshop_answers';

/** Signs of the states of a tile; each is shown with the state's word. */
const SIGNS: { [look in Look]: string } = {
  'not started': '◌',
  idle: '○',
  running: '●',
  stuck: '!',
  failed: '✗',
  ended: '■',
  silent: '?',
  'not shared': '–'
};

export type Look = Shared['state'] | 'silent' | 'not shared';

/** The state that a tile shows: of learners who are silent or do not share, nothing else is known. */
export function lookOf({ shared, silent_s: silent }: Tile): Look {
  return silent > 0 ? 'silent' : shared.shares ? shared.state : 'not shared';
}

export function sign(look: Look): string {
  return SIGNS[look] ?? '·';
}

export function lookWord(look: Look): string {
  const words: { [look in Look]: string } = {
    'not started': trans.__('no ranks yet'),
    idle: trans.__('idle'),
    running: trans.__('running'),
    stuck: trans.__('stuck'),
    failed: trans.__('failed'),
    ended: trans.__('ranks ended'),
    silent: trans.__('not heard from'),
    'not shared': trans.__('not sharing')
  };
  return words[look] ?? look;
}

/** `40 s`, `4 min`, `1 h 05 min`, `3 days`. */
export function lasting(seconds: number): string {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) {
    return trans.__('%1 s', s);
  }
  const minutes = Math.floor(s / 60);
  const days = Math.floor(s / 86_400);
  if (days > 1) {
    return trans._n('%1 day', '%1 days', days);
  }
  const rest = String(minutes % 60).padStart(2, '0');
  return minutes < 60 ? trans.__('%1 min', minutes) : trans.__('%1 h %2 min', Math.floor(minutes / 60), rest);
}

/** `03 Ring all-reduce`, or a note before the first lesson has begun. */
export function lessonOf(shared: Shared): string {
  return shared.lesson_title || trans.__('no lesson begun yet');
}

/** `ring.2: not yet, 3 tries`; '' before the first one. */
export function exerciseOf({ exercise }: Shared): string {
  if (!exercise) {
    return '';
  }
  const tries = trans._n('%1 try', '%1 tries', exercise.tries);
  return exercise.passed ? trans.__('%1: passed, %2', exercise.name, tries) : trans.__('%1: not yet, %2', exercise.name, tries);
}

/** `2 of 2 ranks`; '' without a cluster. */
export function ranksOf({ ranks }: Shared): string {
  return ranks ? trans._n('%2 of %1 rank', '%2 of %1 ranks', ranks.of, ranks.alive) : '';
}

/** How long the hand has been up, or the learner away, and whether they are behind; '' if none of these. */
export function waitingOf({ need, shared, silent_s: silent, away_s: away }: Tile, now: number): string {
  const hand = shared.hand_since ? trans.__('hand up for %1', lasting(now - shared.hand_since)) : '';
  const closed = away > 0 ? trans.__('no notebook open for %1', lasting(away)) : '';
  const heard = silent > 0 ? trans.__('not heard from for %1', lasting(silent)) : closed;
  const behind = need === 'behind' ? trans.__('behind') : '';
  return [hand, heard, behind].filter(Boolean).join(' · ');
}

/** The number of learners of each kind, those who need help first. */
export function counts(tiles: readonly Tile[]): Array<{ need: Need; text: string }> {
  const of = (need: Need): number => tiles.filter(tile => tile.need === need).length;
  const all: Array<[Need, (n: number) => string]> = [
    ['hand', n => trans._n('%1 hand up', '%1 hands up', n)],
    ['stuck', n => trans.__('%1 stuck', n)],
    ['failed', n => trans.__('%1 failed', n)],
    ['silent', n => trans.__('%1 not heard from', n)],
    ['behind', n => trans.__('%1 behind', n)],
    ['', n => trans.__('%1 fine', n)]
  ];
  return all.map(([need, text]) => ({ need, n: of(need), text })).filter(({ n }) => n > 0).map(({ need, n, text }) => ({ need, text: text(n) }));
}

/** `38 learners`, or `38 of 40 learners` if the plan lists them. */
export function attendance({ tiles, absent, is_open: isOpen }: Overview): string {
  const there = tiles.length;
  return isOpen
    ? trans._n('%1 learner', '%1 learners', there)
    : trans._n('%2 of %1 learner', '%2 of %1 learners', there + absent.length, there);
}

/** `Exercise ring.2: 4:05 left`, or `Exercise ring.2: time is up`. */
export function timeOf({ title, until }: Timer, now: number): string {
  const s = Math.ceil(until - now);
  if (s <= 0) {
    return title ? trans.__('%1: time is up', title) : trans.__('time is up');
  }
  const left = trans.__('%1 left', `${Math.floor(s / 60)}:${String(s % 60).padStart(2, '0')}`);
  return title ? `${title}: ${left}` : left;
}

/** How long a timer is still shown after its end. */
export const TIMER_STAYS_S = 60;

export function isShown(timer: Timer | null, now: number): timer is Timer {
  return timer !== null && now < timer.until + TIMER_STAYS_S;
}

/** The time of day, in the user's time zone unless `zone` is given. */
export function clock(seconds: number, zone?: string): string {
  const form: Intl.DateTimeFormatOptions = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23', timeZone: zone };
  return new Date(seconds * 1000).toLocaleTimeString('en-GB', form);
}

/** What leaves the learner's account, as names and current values. */
export function sharedList(shared: Shared, now: number): Array<[string, string]> {
  const hand: [string, string] = [
    trans.__('Hand'),
    shared.hand_since ? trans.__('up since %1', clock(shared.hand_since)) : trans.__('down')
  ];
  if (!shared.shares) {
    return [[trans.__('Name'), shared.user], hand];
  }
  const { run } = shared;
  const nothing = trans.__('nothing yet');
  return [
    [trans.__('Name'), shared.user],
    hand,
    [trans.__('Lesson'), lessonOf(shared)],
    [trans.__('Last exercise'), exerciseOf(shared) || nothing],
    [trans.__('Exercises passed'), String(shared.passed)],
    [trans.__('Of each exercise and quiz question'), trans.__('your tries, and whether you have passed it')],
    [trans.__('State'), [lookWord(shared.state), shared.why].filter(Boolean).join(': ')],
    [trans.__('Ranks'), ranksOf(shared) || nothing],
    [
      trans.__('First line of the newest cell on ranks'),
      run ? trans.__('%1 (%2 ago)', run.title || trans.__('without a title'), lasting(now - run.since)) : nothing
    ],
    [trans.__('Computer'), [shared.host, shared.job && trans.__('job %1', shared.job)].filter(Boolean).join(' · ') || nothing],
    [trans.__('End of the job'), shared.ends_at ? clock(shared.ends_at) : trans.__('none')],
    [trans.__('Notebooks'), trans.__('whether one is open, and since when none is')]
  ];
}

/** The source of the cell that catches up, which stays in the notebook. */
export function catchUpSource({ lesson, exercise }: Offer): string {
  return `%load_ext rankroom\n%course ${lesson?.number ?? 0} --catch-up${exercise ? ` ${exercise}` : ''}`;
}

/** A key of an offer, which changes when the learner goes on to another lesson or exercise. */
export function offerKey({ id, lesson, exercise }: Offer): string {
  return `${id} ${lesson?.number ?? ''} ${exercise}`;
}

/** What is offered, and what happens if it is accepted. */
export function offerWords({ what, lesson, exercise }: Offer): [string, string] {
  if (what === 'reset') {
    return [
      trans.__('Your teacher offers a reset'),
      trans.__('You get a fresh notebook of the lesson and fresh ranks. Your notebook is kept under another name; variables on the ranks are lost.')
    ];
  }
  const where = lesson?.title ?? '';
  const far = exercise
    ? trans.__('A cell in your notebook runs the solutions of %1 up to %2 on your ranks.', where, exercise)
    : trans.__('A cell in your notebook runs the solutions of %1 on your ranks.', where);
  return [trans.__('Your teacher offers to let you catch up'), `${far} ${trans.__('What you have written stays in the notebook.')}`];
}
