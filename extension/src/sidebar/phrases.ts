/** How clusters are described: in words, without a browser. */
import type { Act } from '../api/clusters';
import type { ClusterStatus, ClusterState, Load } from '../cluster_status';
import { size } from '../timeline/amounts';
import { trans } from '../translation';

/** States in which something will change soon. */
const MOVING: ReadonlySet<ClusterState> = new Set(['connecting', 'asks', 'submitting', 'starting', 'ending']);
/** States that have ranks, or the job of which counts down. */
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

/** Whether all that is known of a cluster is that its file cannot be read. */
export function isUnreadable(card: ClusterStatus): boolean {
  return card.state === 'lost' && !card.is_remote && card.size === 0;
}

export function isOver(card: ClusterStatus): boolean {
  return OVER.has(card.state);
}

export function sign(state: ClusterState): string {
  return SIGNS[state] ?? '·';
}

/** How a cluster stands, in a word or two. */
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
  // With spaces at which no line ends.
  const solid = (text: string): string => text.replace(/ /g, '\u00a0');
  const nodes = solid(trans._n('%1 node', '%1 nodes', card.nodes));
  const gpus = card.gpus_per_node ? solid(trans._n('%1 GPU', '%1 GPUs', card.gpus_per_node)) : '';
  if (card.site || card.job) {
    return [card.site, card.job && trans.__('job %1', card.job), gpus ? `${nodes}\u00a0×\u00a0${gpus}` : nodes].filter(Boolean).join(' · ');
  }
  return [trans.__('this machine'), ...(hosts.size ? [gpus || trans.__('CPU')] : [])].join(' · ');
}

/** When a job that waits may start, in the reader's time zone; '' if that is unknown. Times in seconds. */
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

/** Seconds that a cluster has left; null where that is not known or it does not run. */
export function secondsLeft(card: ClusterStatus, now: number): number | null {
  return card.until && (isLive(card) || card.state === 'ending') ? Math.max(0, card.until - now) : null;
}

/** `0:41 left`, or `9 min 30 s left` when that is short; '' where no time is set. */
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
  return s > 0 ? trans.__('%1 s left', s) : trans.__('its time is over');
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

/** What is asked before variables go: a title, what goes, and the button's label; null if nothing does. */
export function question(card: ClusterStatus, act: Act, ranks: string): [string, string, string] | null {
  const { name, size, job } = card;
  if (isOver(card) || act === 'interrupt' || (act === 'restart' && !card.is_supervised)) {
    return null;
  }
  if (act === 'stop' && card.state === 'pending') {
    return [trans.__('Cancel the job of %1?', name), trans.__('Job %1 loses its place in the queue.', job), trans.__('Cancel the job')];
  }
  if (act === 'stop') {
    return [trans.__('Stop %1?', name), `${ending(size, job)} ${trans.__('Records of runs stay.')}`, trans.__('Stop')];
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
    ? trans.__('Variables on that rank are gone then; anything that runs there ends.')
    : trans.__('Variables on the ranks are gone then; anything that runs there ends.');
  return [title, body, trans.__('Restart')];
}

/** What a stop ends; how many ranks a job will have may not be known yet. */
function ending(size: number, job: string): string {
  if (size === 0) {
    return trans.__('This ends its ranks and its job; variables on the ranks are gone then.');
  }
  return job
    ? trans._n(
      'This ends its rank and job %2; variables on the ranks are gone then.',
      'This ends its %1 ranks and job %2; variables on the ranks are gone then.',
      size,
      job
    )
    : trans._n(
      'This ends its rank; variables on the ranks are gone then.',
      'This ends its %1 ranks; variables on the ranks are gone then.',
      size
    );
}

/** A rank's load as shown: a share of 1 for the bar, and in words. */
export interface Shown {
  share: number;
  percent: string;
  memory: string;
  /** All that is known, for a tip. */
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
