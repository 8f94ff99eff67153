/** The phrases a run is described with; rankroom/words.py has the same. */
import { nameRanks } from './ranks';
import type { Profile, Run } from './schema';
import { percent } from './timeline/amounts';

/** The state in words, with the time it took: `done in 12.4 s`. `now` is in microseconds. */
export function how(run: Run, now: number): string {
  switch (run.state) {
    case 'running':
      return `running ${seconds(now - run.start)}`;
    case 'lost':
      return 'lost: the kernel that wrote this record ended before the run did';
    case 'done':
      return run.end ? `done in ${duration(run.end - run.start)}` : 'done';
    default: {
      const where = run.failure ? ` on rank ${run.failure.rank}` : '';
      return `${run.state}${where}${run.end ? ` after ${duration(run.end - run.start)}` : ''}`;
    }
  }
}

/** `4 ranks`, or `ranks 0,2 of 4` when the run left some out. */
export function who(run: Run): string {
  const ranks = run.ranks.map(rank => rank.rank).sort((a, b) => a - b);
  const count = ranks.length || run.size;
  if (count < run.size) {
    return `${nameRanks(ranks)} of ${run.size}`;
  }
  return count === 1 ? '1 rank' : `${count} ranks`;
}

/** Whom the others waited for: `slowest: rank 2, +18 % waiting caused`; '' if nobody stands out. */
export function slowest({ named, stragglers, wall }: Profile): string {
  if (named.length === 0) {
    return '';
  }
  const cost = stragglers.reduce((sum, one) => sum + (named.includes(one.rank) ? one.cost : 0), 0);
  return `slowest: ${nameRanks(named)}, +${percent(Math.min(cost, wall), wall)} waiting caused`;
}

/** Microseconds as a person says them: `85 ms`, `12.4 s`, `2 min 05 s`, `1 h 02 min`. */
export function duration(micros: number): string {
  const ms = Math.max(micros, 0) / 1000;
  if (ms < 999.5) {
    return `${ms.toFixed(0)} ms`;
  }
  if (ms < 59_950) {
    return `${(ms / 1000).toFixed(1)} s`;
  }
  const s = Math.round(ms / 1000);
  if (s < 3600) {
    return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  }
  const minutes = Math.round(s / 60);
  return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

/** A moment of the run: `+0.042 s`. */
export function moment(micros: number): string {
  return micros < 60_000_000 ? `+${(micros / 1e6).toFixed(3)} s` : `+${duration(micros)}`;
}

/** `1 line`, `400,000 lines`. */
export function count(n: number, what: string): string {
  return `${n.toLocaleString('en')} ${what}${n === 1 ? '' : 's'}`;
}

/** A time that goes on, in whole seconds. */
function seconds(micros: number): string {
  const s = Math.max(0, Math.floor(micros / 1e6));
  return s < 60 ? `${s} s` : duration(s * 1e6);
}

function two(n: number): string {
  return String(n).padStart(2, '0');
}
