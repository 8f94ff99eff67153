/** The phrases that describe clusters; usable without a browser. */
import type { Act } from '../api/clusters';
import type { ClusterStatus, ClusterState, Load } from '../cluster_status';
import { size } from '../timeline/amounts';
import { trans } from '../translation';

/** States in which something will change soon. */
const MOVING: ReadonlySet<ClusterState> = new Set(['connecting', 'asks', 'submitting', 'starting', 'ending']);
/** States in which there are ranks, or a job whose time counts down. */
const LIVE: ReadonlySet<ClusterState> = new Set(['starting', 'running', 'lost']);
const OVER: ReadonlySet<ClusterState> = new Set(['ended', 'failed']);

const SIGNS: { [state in ClusterState]: string } = {
  connecting: '◌',
  asks: '?',
  submitting: '◌',
  pending: '◷',
  starting: '◌',
  running: '●',
  lost: '⚡',
  ending: '◌',
  ended: '■',
  failed: '✗'
};

export function isMoving(card: ClusterStatus): boolean {
  return MOVING.has(card.state) || card.ranks.some(rank => rank.state === 'restarting');
}

export function isLive(card: ClusterStatus): boolean {
  return LIVE.has(card.state) && !isUnreadable(card);
}

/** Whether a cluster's file cannot be read, so that nothing else is known of it. */
export function isUnreadable(card: ClusterStatus): boolean {
  return card.state === 'lost' && !card.is_remote && card.size === 0;
}

export function isOver(card: ClusterStatus): boolean {
  return OVER.has(card.state);
}

export function sign(state: ClusterState): string {
  return SIGNS[state] ?? '·';
}

/** The state of a cluster, in a word or two. */
export function stands(card: ClusterStatus): string {
  return isUnreadable(card) ? trans.__('cannot be read') : stateName(card.state);
}

export function stateName(state: ClusterState): string {
  const names: { [state in ClusterState]: string } = {
    connecting: trans.__('connecting'),
    asks: trans.__('ssh asks'),
    submitting: trans.__('submitting'),
    pending: trans.__('in the queue'),
    starting: trans.__('starting'),
    running: trans.__('running'),
    lost: trans.__('connection lost'),
    ending: trans.__('ending'),
    ended: trans.__('ended'),
    failed: trans.__('failed')
  };
  return names[state] ?? state;
}

/** `perlmutter · job 1234 · 2 nodes × 4 GPUs`. */
export function where(card: ClusterStatus): string {
  const hosts = new Set(card.ranks.map(rank => rank.host));
  // With non-breaking spaces.
  const solid = (text: string): string => text.replace(/ /g, '\u00a0');
  const nodes = solid(trans._n('%1 node', '%1 nodes', card.nodes));
  const gpus = card.gpus_per_node ? solid(trans._n('%1 GPU', '%1 GPUs', card.gpus_per_node)) : '';
  if (card.site || card.job) {
    return [card.site, card.job && trans.__('job %1', card.job), gpus ? `${nodes}\u00a0×\u00a0${gpus}` : nodes].filter(Boolean).join(' · ');
  }
  return [trans.__('this machine'), ...(hosts.size ? [gpus || trans.__('CPU')] : [])].join(' · ');
}

/** When a pending job may start, in the user's time zone; '' if unknown. Times are in seconds since the epoch. */
export function expectedAt(card: ClusterStatus, now: number, zone?: string): string {
  if (card.state !== 'pending' || !card.expected) {
    return '';
  }
  const then = new Date(card.expected * 1000);
  const day = (date: Date): string => date.toLocaleDateString('en-CA', { timeZone: zone });
  const clock: Intl.DateTimeFormatOptions = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23', timeZone: zone };
  const time = then.toLocaleTimeString('en-GB', clock);
  if (day(then) === day(new Date(now * 1000))) {
    return trans.__('expected to start at %1', time);
  }
  const date = then.toLocaleDateString('en-GB', { weekday: 'short', day: 'numeric', month: 'short', timeZone: zone });
  return trans.__('expected to start on %1 at %2', date.replace(',', ''), time);
}

/** Seconds that a cluster has left; null if that is unknown or it is not running. */
export function secondsLeft(card: ClusterStatus, now: number): number | null {
  return card.until && (isLive(card) || card.state === 'ending') ? Math.max(0, card.until - now) : null;
}

/** `0:41 left` (hours and minutes), or `9 min 30 s left` when that is short; '' if there is no limit. */
export function timeLeft(card: ClusterStatus, now: number): string {
  const left = secondsLeft(card, now);
  if (left === null) {
    return '';
  }
  const s = Math.floor(left);
  if (s >= 600) {
    return trans.__('%1 left', `${Math.floor(s / 3600)}:${String(Math.floor((s % 3600) / 60)).padStart(2, '0')}`);
  }
  if (s >= 60) {
    return trans.__('%1 min %2 s left', Math.floor(s / 60), String(s % 60).padStart(2, '0'));
  }
  return s > 0 ? trans.__('%1 s left', s) : trans.__('its time is up');
}

/** For the status bar: `4 ranks · 0:41 left`; '' when there is nothing to say. */
export function summary(cards: readonly ClusterStatus[], now: number): string {
  const live = cards.filter(isLive);
  if (live.length === 0) {
    const waiting = cards.find(card => card.state === 'pending');
    const coming = cards.find(isMoving);
    return waiting ? trans.__('ranks wait in the queue') : coming ? trans.__('ranks: %1', stateName(coming.state)) : '';
  }
  const ranks = live.reduce((sum, card) => sum + card.size, 0);
  const first = [...live].filter(card => card.until).sort((a, b) => a.until - b.until)[0];
  const words = [trans._n('%1 rank', '%1 ranks', ranks)];
  if (live.some(card => card.state === 'lost')) {
    words.push(trans.__('connection lost'));
  } else if (live.every(card => card.state === 'starting')) {
    words.push(trans.__('starting'));
  }
  return [...words, first ? timeLeft(first, now) : ''].filter(Boolean).join(' · ');
}

/** The confirmation before variables are lost: title, what is lost, the button's label; null if none is needed. */
export function question(card: ClusterStatus, act: Act, ranks: string): [string, string, string] | null {
  const { name, size, job } = card;
  if (isOver(card) || act === 'interrupt' || (act === 'restart' && !card.is_supervised)) {
    return null;
  }
  if (act === 'stop' && card.state === 'pending') {
    return [trans.__('Cancel the job of %1?', name), trans.__('Job %1 loses its place in the queue.', job), trans.__('Cancel the job')];
  }
  if (act === 'stop') {
    return [trans.__('Stop %1?', name), `${ending(size, job)} ${trans.__('Records of runs are kept.')}`, trans.__('Stop')];
  }
  if (act === 'resize') {
    const then = card.is_remote
      ? trans._n('Then a job for %1 node is submitted.', 'Then a job for %1 nodes is submitted.', Number(ranks))
      : trans._n('Then %1 rank is started.', 'Then %1 ranks are started.', Number(ranks));
    return [trans.__('Resize %1?', name), `${ending(size, card.is_remote ? job : '')} ${then}`, trans.__('Resize')];
  }
  const isDown = ranks !== '' && card.ranks[Number(ranks)]?.state === 'down';
  if (isDown) {
    return null;
  }
  const title = ranks
    ? trans.__('Restart rank %1 of %2?', ranks, name)
    : trans._n('Restart the rank of %2?', 'Restart the %1 ranks of %2?', size, name);
  const body = ranks
    ? trans.__('Variables on that rank are lost, and anything that runs there ends.')
    : trans.__('Variables on the ranks are lost, and anything that runs there ends.');
  return [title, body, trans.__('Restart')];
}

/** What a stop ends; `size` is 0 while the number of ranks is not yet known. */
function ending(size: number, job: string): string {
  if (size === 0) {
    return trans.__('This ends its ranks and its job; variables on the ranks are lost.');
  }
  return job
    ? trans._n(
      'This ends its rank and job %2; variables on the ranks are lost.',
      'This ends its %1 ranks and job %2; variables on the ranks are lost.',
      size,
      job
    )
    : trans._n(
      'This ends its rank; variables on the ranks are lost.',
      'This ends its %1 ranks; variables on the ranks are lost.',
      size
    );
}

/** A rank's load as shown: as a fraction for the bar, and in words. */
export interface Shown {
  share: number;
  percent: string;
  memory: string;
  /** All that is known, for a tooltip. */
  title: string;
}

/** The GPU's load where the rank has one, else the CPU's. */
export function shown(load: Load | undefined): Shown | null {
  if (!load) {
    return null;
  }
  const onGpu = typeof load.gpu === 'number';
  const percent = onGpu ? load.gpu : load.cpu;
  const memory = typeof load.gpu_memory === 'number' ? load.gpu_memory : load.memory;
  const title = [
    typeof load.gpu === 'number' ? trans.__('GPU %1 %%', Math.round(load.gpu)) : '',
    typeof load.gpu_memory === 'number' ? trans.__('GPU memory %1', size(load.gpu_memory)) : '',
    typeof load.cpu === 'number' ? trans.__('CPU %1 %% of a core', Math.round(load.cpu)) : '',
    typeof load.memory === 'number' ? trans.__('memory %1', size(load.memory)) : ''
  ];
  return {
    share: Math.min(1, Math.max(0, (percent ?? 0) / 100)),
    percent: typeof percent === 'number' ? `${Math.round(percent)} %` : '',
    memory: typeof memory === 'number' ? size(memory) : '',
    title: title.filter(Boolean).join(', ')
  };
}
