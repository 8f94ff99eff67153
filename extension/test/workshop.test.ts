import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { ApiError } from '../src/api';
import type { WorkshopApi } from '../src/api/workshop';
import { Console } from '../src/workshop/console';
import { arrange, isStale } from '../src/workshop/order';
import { firstAnswer } from '../src/workshop/seat';
import {
  attendance, catchUpSource, counts, exerciseOf, isShown, lasting, lookOf, lookWord, offerKey, offerWords, ranksOf, sharedList,
  timeOf, TIMER_STAYS_S, waitingOf
} from '../src/workshop/words';
import type { Offer, Overview, Shared, Tile } from '../src/workshop_answers';

const NOW = 1_800_000_000;

function shared(more: Partial<Shared> = {}): Shared {
  return {
    user: 'learner01', shares: true, hand_since: 0, lesson: 3, lesson_title: '03 Ring all-reduce',
    exercise: { name: 'ring.2', passed: false, tries: 3 }, passed: 4, state: 'idle', why: '', ranks: { alive: 2, of: 2 },
    run: { title: 'x = 1', state: 'done', since: NOW - 125 }, host: 'node01', job: '4711', ends_at: 0, ...more
  };
}

function tile(more: Partial<Tile> = {}, of: Partial<Shared> = {}): Tile {
  return { key: 'a', need: '', silent_s: 0, away_s: 0, offered: null, shared: shared(of), ...more };
}

test('tiles are ordered by need, except while the teacher points at one', () => {
  assert.deepEqual(arrange(['a', 'b', 'c'], ['c', 'a', 'b'], false), ['c', 'a', 'b']);
  assert.deepEqual(arrange(['a', 'b', 'c'], ['c', 'a', 'b'], true), ['a', 'b', 'c']);
  // A learner who has left is removed at once; a new one is added at the end.
  assert.deepEqual(arrange(['a', 'b', 'c'], ['d', 'c', 'a'], true), ['a', 'c', 'd']);
  assert.deepEqual(arrange([], ['b', 'a'], true), ['b', 'a']);
  assert.equal(isStale(['a', 'b'], ['a', 'b']), false);
  assert.equal(isStale(['a', 'b'], ['b', 'a']), true);
  assert.equal(isStale(['a'], ['a', 'b']), true);
});

test('a silent or non-sharing learner is shown as such, whatever the state', () => {
  assert.equal(lookOf(tile({}, { state: 'stuck' })), 'stuck');
  assert.equal(lookOf(tile({ silent_s: 200 }, { state: 'stuck' })), 'silent');
  assert.equal(lookOf(tile({}, { shares: false })), 'not shared');
  assert.equal(lookWord('not started'), 'no ranks yet');
});

test('durations are short, and coarser the longer they are', () => {
  assert.deepEqual(
    [-3, 0, 59.9, 60, 3_599, 3_600, 3_900, 86_400, 200_000].map(lasting),
    ['0 s', '0 s', '59 s', '1 min', '59 min', '1 h 00 min', '1 h 05 min', '24 h 00 min', '2 days']
  );
  assert.equal(waitingOf(tile({}, { hand_since: NOW - 250 }), NOW), 'hand up for 4 min');
  assert.equal(waitingOf(tile({ silent_s: 200 }, { hand_since: NOW - 30 }), NOW), 'hand up for 30 s · not heard from for 3 min');
  assert.equal(waitingOf(tile({ need: 'behind' }), NOW), 'behind');
  assert.equal(waitingOf(tile(), NOW), '');
});

test('exercises and ranks are described in words', () => {
  assert.equal(exerciseOf(shared()), 'ring.2: not yet, 3 tries');
  assert.equal(exerciseOf(shared({ exercise: { name: 'ring.1', passed: true, tries: 1 } })), 'ring.1: passed, 1 try');
  assert.equal(exerciseOf(shared({ exercise: null })), '');
  assert.equal(ranksOf(shared({ ranks: { alive: 1, of: 2 } })), '1 of 2 ranks');
  assert.equal(ranksOf(shared({ ranks: { alive: 1, of: 1 } })), '1 of 1 rank');
  assert.equal(ranksOf(shared({ ranks: null })), '');
});

test('counts list those who need help first and omit empty kinds', () => {
  const tiles = [tile({ need: 'hand' }), tile({ need: 'stuck' }), tile({ need: 'stuck' }), tile(), tile(), tile()];
  assert.deepEqual(counts(tiles).map(({ text }) => text), ['1 hand up', '2 stuck', '3 fine']);
  assert.deepEqual(counts([]), []);
  const overview = (absent: string[], isOpen: boolean): string =>
    attendance({ tiles: [tile(), tile()], absent, is_open: isOpen } as unknown as Overview);
  assert.equal(overview(['x', 'y', 'z'], false), '2 of 5 learners');
  assert.equal(overview([], true), '2 learners');
});

test('a timer counts down, says that time is up, and disappears', () => {
  const timer = { title: 'ring.2', until: NOW + 245 };
  assert.equal(timeOf(timer, NOW), 'ring.2: 4:05 left');
  assert.equal(timeOf(timer, NOW + 244.2), 'ring.2: 0:01 left');
  assert.equal(timeOf(timer, NOW + 245), 'ring.2: time is up');
  assert.equal(timeOf({ title: '', until: NOW }, NOW), 'time is up');
  assert.equal(isShown(timer, NOW + 245), true);
  assert.equal(isShown(timer, NOW + 245 + TIMER_STAYS_S), false);
  assert.equal(isShown(null, NOW), false);
});

test('the list of shared data contains every shared value', () => {
  const listed = new Map(sharedList(shared({ state: 'failed', why: 'rank 1: KeyError' }), NOW));
  assert.equal(listed.get('State'), 'failed: rank 1: KeyError');
  assert.equal(listed.get('First line of the newest cell on ranks'), 'x = 1 (2 min ago)');
  assert.equal(listed.get('Computer'), 'node01 · job 4711');
  // Each value that is shared is in the list.
  const told = { ...shared({ why: 'WHY', user: 'USER', host: 'HOST', job: 'JOB', lesson_title: 'LESSON' }), passed: 71 };
  const all = sharedList(told, NOW).map(([, value]) => value).join(' ');
  ['WHY', 'USER', 'HOST', 'JOB', 'LESSON', 'ring.2', '71', '2 of 2'].forEach(value => assert.ok(all.includes(value), value));
  assert.ok(listed.has('Of each exercise and quiz question') && listed.has('Notebooks'), 'these have no value here');
  assert.deepEqual(sharedList(shared({ shares: false }), NOW), [['Name', 'learner01'], ['Hand', 'down']]);
});

test('an offer states what will happen and the cell that it runs', () => {
  const lesson = { number: 3, title: '03 Ring all-reduce', file: '03_ring_allreduce.ipynb' };
  const offer: Offer = { id: '7', at: NOW, what: 'catch up', lesson, exercise: 'ring.2' };
  assert.equal(catchUpSource(offer), '%load_ext rankroom\n%course 3 --catch-up ring.2');
  assert.equal(catchUpSource({ ...offer, exercise: '' }), '%load_ext rankroom\n%course 3 --catch-up');
  assert.match(offerWords(offer).join(' '), /solutions of 03 Ring all-reduce up to ring\.2 .* stays in the notebook/);
  assert.match(offerWords({ ...offer, what: 'reset' }).join(' '), /reset .* kept under another name/);
});

test('the key of an offer changes with the lesson or exercise', () => {
  const at = (number: number): Offer['lesson'] => ({ number, title: `lesson ${number}`, file: `${number}.ipynb` });
  const offer: Offer = { id: '7', at: NOW, what: 'reset', lesson: at(3), exercise: '' };
  assert.equal(offerKey(offer), offerKey({ ...offer, lesson: at(3) }));
  const others = [offer, { ...offer, lesson: at(4) }, { ...offer, lesson: null }, { ...offer, exercise: 'ring.2' }, { ...offer, id: '8' }];
  assert.equal(new Set(others.map(offerKey)).size, others.length);
});

test('an unresponsive server is retried; one without the routes is no seat', async () => {
  const answers = [new ApiError('the Jupyter server does not respond', 0), new ApiError('busy', 503), { role: 'learner' }];
  const own = (): Promise<unknown> => {
    const next = answers.shift();
    return next instanceof Error ? Promise.reject(next) : Promise.resolve(next);
  };
  assert.equal((await firstAnswer({ own } as unknown as WorkshopApi, 1))?.role, 'learner');
  const none = { own: () => Promise.reject(new ApiError('not found', 404)) };
  assert.equal(await firstAnswer(none as unknown as WorkshopApi, 1), null);
});

test('the chosen exercise is cleared when another workshop is opened', t => {
  const api = { overview: () => Promise.resolve({ now: NOW }) };
  const model = new Console(api as unknown as WorkshopApi, '/one');
  t.after(() => model.dispose());
  model.choose('ring.2');
  model.folder = '/two';
  assert.equal(model.exercise, '');
});
