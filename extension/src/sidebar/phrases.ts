/** How clusters are described: in words, without a browser. */
import type { Card, CardState, Load } from '../cards';

/** States in which something will change soon. */
const MOVING: ReadonlySet<CardState> = new Set(['connecting', 'asks', 'submitting', 'starting', 'ending']);
/** States that have ranks, or the job of which counts down. */
const LIVE: ReadonlySet<CardState> = new Set(['starting', 'running', 'lost']);
const OVER: ReadonlySet<CardState> = new Set(['ended', 'failed']);

const SIGNS: { [state in CardState]: string } = {
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

const NAMES: { [state in CardState]: string } = {
  connecting: 'connecting',
  asks: 'ssh asks',
  submitting: 'submitting',
  pending: 'in the queue',
  starting: 'starting',
  running: 'running',
  lost: 'connection lost',
  ending: 'ending',
  ended: 'ended',
  failed: 'failed'
};

export function isMoving(card: Card): boolean {
  return MOVING.has(card.state) || card.ranks.some(rank => rank.state === 'restarting');
}

export function isLive(card: Card): boolean {
  return LIVE.has(card.state);
}

export function isOver(card: Card): boolean {
  return OVER.has(card.state);
}

export function sign(state: CardState): string {
  return SIGNS[state] ?? '·';
}

export function stateName(state: CardState): string {
  return NAMES[state] ?? state;
}

/** `perlmutter · job 1234 · 2 nodes × 4 GPUs`. */
export function where(card: Card): string {
  const hosts = new Set(card.ranks.map(rank => rank.host));
  // With spaces at which no line ends.
  const nodes = `${card.nodes}\u00a0${card.nodes === 1 ? 'node' : 'nodes'}`;
  const gpus = card.gpus_per_node ? `\u00a0×\u00a0${card.gpus_per_node}\u00a0${card.gpus_per_node === 1 ? 'GPU' : 'GPUs'}` : '';
  if (card.site || card.job) {
    return [card.site, card.job && `job ${card.job}`, `${nodes}${gpus}`].filter(Boolean).join(' · ');
  }
  const devices = card.gpus_per_node ? gpus.slice(3) : 'CPU';
  return ['this machine', ...(hosts.size ? [devices] : [])].join(' · ');
}

/** When a job that waits may start, in the reader's time zone; '' if nobody knows. Times in seconds. */
export function expectedAt(card: Card, now: number, zone?: string): string {
  if (card.state !== 'pending' || !card.expected) {
    return '';
  }
  const then = new Date(card.expected * 1000);
  const day = (date: Date): string => date.toLocaleDateString('en-CA', { timeZone: zone });
  const clock: Intl.DateTimeFormatOptions = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23', timeZone: zone };
  const time = then.toLocaleTimeString('en-GB', clock);
  if (day(then) === day(new Date(now * 1000))) {
    return `expected to start at ${time}`;
  }
  const date = then.toLocaleDateString('en-GB', { weekday: 'short', day: 'numeric', month: 'short', timeZone: zone });
  return `expected to start on ${date.replace(',', '')} at ${time}`;
}

/** Seconds that a cluster has left; null where that is not known or it does not run. */
export function secondsLeft(card: Card, now: number): number | null {
  return card.until && (isLive(card) || card.state === 'ending') ? Math.max(0, card.until - now) : null;
}

/** `0:41 left`, or `9 min 30 s left` when that is short; '' where no time is set. */
export function timeLeft(card: Card, now: number): string {
  const left = secondsLeft(card, now);
  if (left === null) {
    return '';
  }
  const s = Math.floor(left);
  if (s >= 600) {
    return `${Math.floor(s / 3600)}:${String(Math.floor((s % 3600) / 60)).padStart(2, '0')} left`;
  }
  if (s >= 60) {
    return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, '0')} s left`;
  }
  return s > 0 ? `${s} s left` : 'its time is over';
}

/** For the status bar: `4 ranks · 0:41 left`; '' when there is nothing to say. */
export function summary(cards: readonly Card[], now: number): string {
  const live = cards.filter(isLive);
  if (live.length === 0) {
    const waiting = cards.find(card => card.state === 'pending');
    const coming = cards.find(isMoving);
    return waiting ? 'ranks wait in the queue' : coming ? `ranks: ${stateName(coming.state)}` : '';
  }
  const ranks = live.reduce((sum, card) => sum + card.size, 0);
  const first = [...live].filter(card => card.until).sort((a, b) => a.until - b.until)[0];
  const words = [`${ranks} ${ranks === 1 ? 'rank' : 'ranks'}`];
  if (live.some(card => card.state === 'lost')) {
    words.push('connection lost');
  } else if (live.every(card => card.state === 'starting')) {
    words.push('starting');
  }
  return [...words, first ? timeLeft(first, now) : ''].filter(Boolean).join(' · ');
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
    typeof load.gpu === 'number' ? `GPU ${Math.round(load.gpu)} %` : '',
    typeof load.gpu_memory === 'number' ? `GPU memory ${bytes(load.gpu_memory)}` : '',
    typeof load.cpu === 'number' ? `CPU ${Math.round(load.cpu)} % of a core` : '',
    typeof load.memory === 'number' ? `memory ${bytes(load.memory)}` : ''
  ];
  return {
    share: Math.min(1, Math.max(0, (percent ?? 0) / 100)),
    percent: typeof percent === 'number' ? `${Math.round(percent)} %` : '',
    memory: typeof memory === 'number' ? bytes(memory) : '',
    title: title.filter(Boolean).join(', ')
  };
}

/** `312 MB`, `12.1 GB`. */
export function bytes(n: number): string {
  return n < 999.5e6 ? `${Math.round(n / 1e6)} MB` : `${(n / 1e9).toFixed(1)} GB`;
}
