import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import type { ClusterStatus, RankStatus } from '../src/cluster_status';
import type { Run } from '../src/schema';
import { attachCell } from '../src/sidebar/attach';
import { entriesOf } from '../src/sidebar/runlist';
import { expectedAt, isMoving, question, secondsLeft, shown, stands, summary, timeLeft, where } from '../src/sidebar/phrases';
import { DOINGS, isOffered, isPossible } from '../src/sidebar/possible';
import { holds, Warnings } from '../src/sidebar/warnings';

const NOW = 1_800_000_000;

function rank(number: number, more: Partial<RankStatus> = {}): RankStatus {
  return { rank: number, local_rank: 0, host: 'c1', device: 'cpu', pid: 1, state: 'ready', note: '', ...more };
}

function card(more: Partial<ClusterStatus> = {}): ClusterStatus {
  return {
    name: 'one', site: '', state: 'running', words: '', remedy: '', job: '', size: 2, ranks: [rank(0), rank(1)], nodes: 1,
    gpus_per_node: 0, expected: 0, until: 0, created: NOW, log: '', is_remote: false, is_supervised: true, ...more
  };
}

test('the place of a cluster names its machine or site, job and hardware', () => {
  const plain = (one: ClusterStatus): string => where(one).replace(/\u00a0/g, ' ');
  assert.equal(plain(card()), 'this machine · CPU');
  assert.equal(plain(card({ ranks: [] })), 'this machine');
  assert.equal(plain(card({ gpus_per_node: 1 })), 'this machine · 1 GPU');
  assert.equal(plain(card({ site: 'hpc', job: '12', nodes: 2, gpus_per_node: 4 })), 'hpc · job 12 · 2 nodes × 4 GPUs');
  assert.equal(plain(card({ site: 'hpc' })), 'hpc · 1 node');
  assert.equal(plain(card({ job: '12' })), 'job 12 · 1 node');
});

test('the remaining time counts down, with seconds when it is short', () => {
  const left = (seconds: number): string => timeLeft(card({ until: NOW + seconds }), NOW);
  assert.deepEqual(
    [90_000, 2_500, 600, 599, 61, 59.9, 0, -5].map(left),
    ['25:00 left', '0:41 left', '0:10 left', '9 min 59 s left', '1 min 01 s left', '59 s left', 'its time is up', 'its time is up']
  );
  assert.equal(timeLeft(card(), NOW), '');
  assert.equal(secondsLeft(card({ state: 'pending', until: NOW + 5 }), NOW), null);
});

test('the expected start of a job is shown in the reader’s time zone', () => {
  // NOW is 08:00 in UTC.
  const at = (expected: number, zone: string, state: ClusterStatus['state'] = 'pending'): string =>
    expectedAt(card({ state, expected }), NOW, zone);
  assert.equal(at(NOW + 3_600, 'UTC'), 'expected to start at 09:00');
  assert.equal(at(NOW + 3_600, 'America/Los_Angeles'), 'expected to start at 01:00');
  assert.equal(at(NOW + 86_400, 'UTC'), 'expected to start on Sat 16 Jan at 08:00');
  assert.equal(at(NOW + 17 * 3_600, 'Asia/Seoul'), 'expected to start on Sat 16 Jan at 10:00');
  assert.equal(at(0, 'UTC'), '');
  assert.equal(at(NOW + 3_600, 'UTC', 'running'), '');
});

test('the status bar summarizes the clusters', () => {
  const of = (...cards: ClusterStatus[]): string => summary(cards, NOW);
  assert.equal(of(), '');
  assert.equal(of(card({ size: 4, until: NOW + 2_500 })), '4 ranks · 0:41 left');
  assert.equal(of(card({ size: 4, until: NOW + 2_500 }), card({ size: 2, until: NOW + 700 })), '6 ranks · 0:11 left');
  assert.equal(of(card({ size: 1 }), card({ state: 'failed' })), '1 rank');
  assert.equal(of(card({ state: 'starting' })), '2 ranks · starting');
  assert.equal(of(card({ state: 'lost' })), '2 ranks · connection lost');
  assert.equal(of(card({ state: 'pending' })), 'ranks wait in the queue');
  assert.equal(of(card({ state: 'connecting' })), 'ranks: connecting');
  assert.equal(of(card({ state: 'ended' })), '');
});

test('load is shown for the GPU if there is one, else for the CPU', () => {
  assert.equal(shown(undefined), null);
  const cpu = shown({ cpu: 250, memory: 312e6, gpu: null, gpu_memory: null })!;
  assert.deepEqual([cpu.share, cpu.percent, cpu.memory], [1, '250 %', '312.0 MB']);
  assert.equal(cpu.title, 'CPU 250 % of a core, memory 312.0 MB');
  const gpu = shown({ cpu: 99, memory: 1e9, gpu: 40, gpu_memory: 12.06e9 })!;
  assert.deepEqual([gpu.share, gpu.percent, gpu.memory], [0.4, '40 %', '12.1 GB']);
  assert.match(gpu.title, /^GPU 40 %, GPU memory 12.1 GB, CPU/);
  assert.deepEqual([shown({})!.percent, shown({})!.memory], ['', '']);
});

test('a cluster is changing while it ends or restarts a rank', () => {
  assert.ok(!isMoving(card()));
  assert.ok(isMoving(card({ state: 'ending' })));
  assert.ok(isMoving(card({ ranks: [rank(0, { state: 'restarting' })] })));
});

test('warnings are given once at ten and at two minutes before the end', () => {
  const warnings = new Warnings();
  const one = card({ until: NOW + 1_000 });
  const told = (now: number, cards = [one]): number[] => warnings.due(cards, now).map(({ limit }) => limit);
  assert.deepEqual(told(NOW), []);
  assert.deepEqual(told(NOW + 400), [600]);
  assert.deepEqual(told(NOW + 401), []);
  assert.deepEqual(told(NOW + 880), [120]);
  assert.deepEqual(told(NOW + 950), []);
  assert.deepEqual(told(NOW + 1_001), []);
  // A later cluster of the same name.
  assert.deepEqual(told(NOW + 1_010, [card({ until: NOW + 1_100 })]), [120]);
  assert.deepEqual(told(NOW + 1_000, [card({ name: 'two', state: 'pending', until: NOW + 1_050 })]), []);
});

test('a warning states the time left and what then ends', () => {
  const text = (left: number): string => new Warnings().due([card({ until: NOW + left })], NOW)[0].text;
  assert.match(text(599), /^one: 10 minutes left, then its job ends/);
  assert.match(text(118), /^one: 2 minutes left/);
  assert.match(text(61), /^one: 1 minute left/);
  assert.match(text(20), /^one: less than a minute left/);
});

test('a warning lapses when its cluster ends or gets more time', () => {
  const after = (more: Partial<ClusterStatus>): boolean => holds(card(more), 600, NOW);
  assert.ok(after({ until: NOW + 500 }));
  assert.ok(after({ until: NOW + 500, state: 'connecting' }));
  assert.ok(!after({ until: NOW + 4_000 }));
  assert.ok(!after({ until: NOW + 500, state: 'ended' }));
  assert.ok(!after({ until: 0, state: 'pending' }));
  assert.ok(!holds(undefined, 600, NOW));
});

test('an unreadable cluster offers no actions and is not counted', () => {
  const unread = card({ state: 'lost', size: 0, ranks: [], is_supervised: false });
  assert.equal(stands(unread), 'cannot be read');
  assert.equal(stands(card({ state: 'lost', is_remote: true })), 'connection lost');
  assert.deepEqual(DOINGS.filter(what => isOffered(unread, what)), []);
  assert.equal(summary([unread], NOW), '');
  assert.equal(summary([unread, card()], NOW), '2 ranks');
});

test('the actions on a cluster depend on its state', () => {
  const can = (state: ClusterStatus['state'], under: 'stop' | null = null): string =>
    DOINGS.filter(what => isPossible(card({ state }), what, under)).join(' ');
  assert.equal(can('running'), 'insert interrupt log restart resize stop');
  assert.equal(can('running', 'stop'), 'insert log');
  assert.equal(can('pending'), 'stop');
  assert.equal(can('ending'), 'log');
  assert.equal(can('failed'), 'log restart stop');
});

test('a confirmation states what is lost', () => {
  const body = (act: 'stop' | 'resize', more: Partial<ClusterStatus>, ranks = ''): string => question(card(more), act, ranks)![1];
  assert.match(body('stop', {}), /^This ends its 2 ranks; variables on the ranks are lost. Records of runs are kept.$/);
  assert.match(body('stop', { size: 1, job: '7' }), /^This ends its rank and job 7;/);
  assert.match(body('stop', { size: 0, state: 'connecting', is_remote: true }), /^This ends its ranks and its job;/);
  assert.match(body('resize', { is_remote: true }, '1'), / Then a job for 1 node is submitted.$/);
  assert.match(body('resize', { is_remote: true }, '2'), / Then a job for 2 nodes is submitted.$/);
  assert.match(body('resize', { is_remote: true, job: '7' }, '2'), /^This ends its 2 ranks and job 7;/);
  assert.match(body('resize', {}, '3'), / Then 3 ranks are started.$/);
  assert.equal(question(card(), 'restart', '')![0], 'Restart the 2 ranks of one?');
  assert.equal(question(card(), 'restart', '1')![0], 'Restart rank 1 of one?');
  assert.equal(question(card({ state: 'ended' }), 'stop', ''), null);
});

test('the inserted cell attaches to its cluster', () => {
  assert.equal(attachCell('one').source, '%load_ext rankroom\n%cluster attach one');
});

test('runs of each %%scaling are grouped into one entry', () => {
  let start = 0;
  const run = (name: string | null, title = 'train()'): Run => ({
    version: 1, id: `run-${start}`, state: 'done', start: start++, cluster: 'local', size: 2, ranks: [], name, title
  });
  const scaling = (title?: string): Run[] =>
    ['1 rank, to warm up', '1 rank, 1 of 1', '2 ranks, to warm up', '2 ranks, 1 of 1'].map(words => run(`scaling: ${words}`, title));
  const runs = [run(null), ...scaling(), ...scaling(), ...scaling('other()'), run('scaling: mine'), run(null)];
  const entries = entriesOf(runs.reverse());
  assert.deepEqual(entries.map(entry => entry.length), [1, 1, 4, 4, 4, 1]);
  assert.deepEqual(entries.flat(), runs);
  assert.deepEqual(entriesOf([]), []);
});
