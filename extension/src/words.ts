/** The phrases that describe a run; rankroom/display/words.py has the same. */
import { formatRanks, nameRanks } from './ranks';
import type { Profile, RankState, Run, RunState } from './schema';
import { percent } from './timeline/amounts';
import { trans } from './translation';

/** A sign for each state of a run. */
export const SIGNS: { [state in RunState]: string } = { running: '●', done: '✓', failed: '✗', interrupted: '■', lost: '?' };

/** The state in words, with the time it took: `done in 12.4 s`. `now` is in microseconds. */
export function how(run: Run, now: number): string {
  switch (run.state) {
    case 'running':
      return trans.__('running %1', seconds(now - run.start));
    case 'lost':
      return trans.__('lost: the process that wrote this record ended before the run did');
    case 'done':
      return run.end ? trans.__('done in %1', duration(run.end - run.start)) : trans.__('done');
    default: {
      const state = broken(run.state);
      const took = run.end ? duration(run.end - run.start) : '';
      if (run.failure) {
        const { rank } = run.failure;
        return took ? trans.__('%1 on rank %2 after %3', state, rank, took) : trans.__('%1 on rank %2', state, rank);
      }
      return took ? trans.__('%1 after %2', state, took) : state;
    }
  }
}

/** `ValueError: no such rank`; only the name if an error has no message. */
export function errorWords({ ename, evalue }: { ename: string; evalue: string }, most: number): string {
  const said = evalue.trim().split('\n', 1)[0].slice(0, most);
  return said ? `${ename}: ${said}` : ename;
}

/** `4 ranks`, or `ranks 0,2 of 4` when the run left some out. */
export function who(run: Run): string {
  const ranks = run.ranks.map(rank => rank.rank).sort((a, b) => a - b);
  const count = ranks.length || run.size;
  if (count < run.size) {
    return trans._n('rank %2 of %3', 'ranks %2 of %3', ranks.length, formatRanks(ranks), run.size);
  }
  return trans._n('%1 rank', '%1 ranks', count);
}

/** The state of a rank, in a word. */
export function stateWord(state: RankState): string {
  const words: { [state in RankState]: string } = {
    running: trans.__('running'),
    ok: trans.__('ok'),
    error: trans.__('error'),
    interrupted: trans.__('interrupted'),
    released: trans.__('released'),
    lost: trans.__('lost')
  };
  return words[state] ?? state;
}

/**
 * The ranks that the others waited for: `slowest: rank 2, +41 % of a step`, or without steps
 * `slowest: rank 2, others waited 18 % of the run`; '' if no rank stands out.
 */
export function slowest(profile: Profile): string {
  const { named, loop, phases } = profile;
  if (named.length === 0) {
    return '';
  }
  const steps = loop?.named.length ? phases?.find(({ phase }) => phase === 'loop') : undefined;
  const { stragglers, wall } = steps ?? profile;
  const cost = stragglers.reduce((sum, one) => sum + (named.includes(one.rank) ? one.cost : 0), 0);
  const share = percent(Math.min(cost, wall), wall);
  return steps
    ? trans.__('slowest: %1, +%2 of a step', nameRanks(named), share)
    : trans.__('slowest: %1, others waited %2 of the run', nameRanks(named), share);
}

/** A duration in microseconds, for people: `85 ms`, `12.4 s`, `2 min 05 s`, `1 h 02 min`. */
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
  const sign = micros < 0 ? '−' : '+'; // a rank's clock may be ahead
  return micros < 60_000_000 ? `${sign}${Math.abs(micros / 1e6).toFixed(3)} s` : `+${duration(micros)}`;
}

/** A moment to the millisecond, or finer to tell `fine` microseconds apart: `+0.042 s`, `+1:02:03.123`. */
export function exactMoment(micros: number, fine = Infinity): string {
  const digits = Math.min(Math.max(Math.ceil(6 - Math.log10(fine)), 3), 6);
  const unit = 10 ** (6 - digits);
  const rounded = Math.round(Math.abs(micros) / unit) * unit;
  const sign = micros < 0 ? '−' : '+';
  const minutes = Math.floor(rounded / 60e6);
  const seconds = ((rounded % 60e6) / 1e6).toFixed(digits);
  if (minutes === 0) {
    return `${sign}${seconds} s`;
  }
  const whole = minutes < 60 ? String(minutes) : `${Math.floor(minutes / 60)}:${two(minutes % 60)}`;
  return `${sign}${whole}:${seconds.padStart(digits + 3, '0')}`;
}

/** `400,000`. */
export function grouped(n: number): string {
  return n.toLocaleString('en');
}

/** The state of a run that failed or was interrupted; one that only a newer writer knows stays as recorded. */
function broken(state: RunState): string {
  switch (state) {
    case 'failed':
      return trans.__('failed');
    case 'interrupted':
      return trans.__('interrupted');
    default:
      return state;
  }
}

/** A duration that still grows, in whole seconds. */
function seconds(micros: number): string {
  const s = Math.max(0, Math.floor(micros / 1e6));
  return s < 60 ? `${s} s` : duration(s * 1e6);
}

function two(n: number): string {
  return String(n).padStart(2, '0');
}
