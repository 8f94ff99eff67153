/** The phases of a run: its loop, separate from start-up, warm-up and the rest. */
import type { Loop, Phase, Profile } from '../schema';
import { trans } from '../translation';
import { duration, grouped } from '../words';
import { lasting, type Range } from './range';
import type { ProfileRows } from './tables';

/** Number of the loop's steps that are shown initially. */
const FIRST_STEPS = 5;
/** The whole run is shown initially, unless those steps take less than this share of it. */
const SHARE = 0.25;

/** What a table covers: a phase, or the whole run. */
export interface ProfilePart {
  key: Phase['phase'] | 'run';
  title: string;
  rows: ProfileRows;
}

/** Return the parts of a run, the most important first; only the whole run if it has no loop. */
export function partsOf(profile: Profile): ProfilePart[] {
  const { loop, phases } = profile;
  const run: ProfilePart = { key: 'run', title: trans.__('whole run'), rows: profile };
  if (!loop || !phases) {
    return [run];
  }
  const titles: { [phase in Phase['phase']]: string } = {
    loop: stepsOf(loop),
    startup: trans.__('start-up'),
    warmup: trans.__('warm-up'),
    rest: trans.__('rest')
  };
  const parts = phases.map(rows => ({ key: rows.phase, title: titles[rows.phase] ?? rows.phase, rows }));
  return [...parts.filter(({ key }) => key === 'loop'), ...parts.filter(({ key }) => key !== 'loop'), run];
}

/** Return an explanation of a part. */
export function meaning(key: ProfilePart['key']): string {
  const meanings: { [key in ProfilePart['key']]: string } = {
    loop: trans.__('the steps that are counted'),
    startup: trans.__('everything before the loop: imports, data, the model'),
    warmup: trans.__('the first steps, which take longer or begin at an unknown moment'),
    rest: trans.__('what all ranks do between steps, and after them'),
    run: trans.__('all phases together')
  };
  return meanings[key] ?? '';
}

/** `steps 3–40`. */
export function stepsOf({ first, last }: Loop): string {
  return trans.__('steps %1–%2', grouped(first), grouped(last));
}

/** Return facts about a loop: how fast it is, and what is not counted in it. Some may be ''. */
export function loopFacts(loop: Loop): string[] {
  const { apart, fewest, most } = loop;
  const end = loop.line === null ? loop.name : trans.__('%1 in line %2', loop.name, loop.line);
  return [
    trans.__('%1 steps/s', rate(loop.rate)),
    trans.__('%1 per step', lasting(loop.time / loop.steps)),
    loop.samples === null ? '' : trans.__('%1 samples/s', rate(loop.samples)),
    trans.__('a step ends with %1', end),
    apart ? trans._n('not counting %2 step in which all ranks also did something else',
      'not counting %2 steps in which all ranks also did something else', apart, grouped(apart)) : '',
    fewest < most ? trans.__('ranks did between %1 and %2 steps', grouped(fewest), grouped(most)) : '',
    ...loop.others.map(other => {
      const name = other.line === null ? other.name : trans.__('%1 in line %2', other.name, other.line);
      return trans.__('another loop, with %1: %2 steps in %3', name, grouped(other.steps), duration(other.time));
    })
  ];
}

/** Say how long ranks imported modules in a phase; '' if they did not. */
export function importsOf(profile: Profile, key: ProfilePart['key']): string {
  const imports = profile.phases?.find(({ phase }) => phase === key)?.imports ?? 0;
  return imports ? trans.__('%1 of it imports', duration(imports)) : '';
}

/** Return the range of the loop's first steps, to show initially; null unless they are a small part of the run. */
export function firstSteps(profile: Profile | null): Range | null {
  const phase = profile?.phases?.find(each => each.phase === 'loop');
  if (!profile?.loop || !phase) {
    return null;
  }
  const length = (FIRST_STEPS * profile.loop.time) / profile.loop.steps;
  return length < SHARE * profile.wall ? { from: phase.begin, to: phase.begin + length } : null;
}

/** Format a rate with three digits. */
function rate(value: number): string {
  return value >= 99.95 ? grouped(Math.round(value)) : String(Number(value.toPrecision(3)));
}
