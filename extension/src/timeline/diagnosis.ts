/** What a profile comes to, in one sentence; rankroom/profile.py says the same. */
import type { OwnSpan } from './own';
import type { RankProfile, StragglerProfile } from './profilerows';

interface Found {
  wall: number;
  ranks: readonly RankProfile[];
  /** The dearest first. */
  stragglers: readonly StragglerProfile[];
}

/** What is known of collectives with two or more ranks, and whether any was given up. */
interface Shared {
  count: number;
  ops: ReadonlySet<string>;
  hasGivenUp: boolean;
}

/** Percent of the wall that a straggler must cost to be named, and microseconds. */
const NAMED = 3;
const LEAST = 10_000;
/** Microseconds that a cell must last for a word about it. */
const SHORTEST = 100_000;

/** The sentence; `own` are the user's spans that may explain what the named ranks cost. */
export function diagnosis(found: Found, { count: shared, ops, hasGivenUp }: Shared, own: readonly OwnSpan[]): string {
  const { wall, ranks } = found;
  if (ranks.length < 2 || shared === 0 || wall < SHORTEST) {
    return '';
  }
  const named = namedOf(found);
  if (named.length === 0) {
    return ['no rank stands out', ...nobody(found, hasGivenUp)].join('; ');
  }
  const who = named.map(({ rank }) => rank).sort((a, b) => a - b);
  const isOne = who.length === 1;
  const names = isOne ? `rank ${who[0]}` : `ranks ${who.slice(0, -1).join(', ')} and ${who[who.length - 1]}`;
  const cost = costOf(found, named);
  const share = percent(sum(named.map(({ last }) => last)), shared);
  const op = ops.size === 1 && !ops.has('') && !ops.has('?') ? [...ops][0] : 'collective';
  const many = `${op}${/(s|x|ch|sh)$/.test(op) ? 'es' : 's'}`;
  const where = shared > 1 ? `${share} of ${shared.toLocaleString('en')} ${many}` : `the only ${op}`;
  return (
    `${names} ${isOne ? 'arrives' : 'arrive'} last in ${where}` +
    ` and ${isOne ? 'costs' : 'cost'} ${percent(cost, wall)} of the cell` +
    (ownCause(own, who, cost) || cause(ranks, who, cost))
  );
}

/** What the named ranks cost together. */
export function costOf({ wall }: Found, named: readonly StragglerProfile[]): number {
  return Math.min(sum(named.map(({ cost }) => cost)), wall);
}

/** The stragglers that are named: few, and dear enough. */
export function namedOf({ wall, ranks, stragglers }: Found): StragglerProfile[] {
  const top = stragglers.length ? stragglers[0].cost : 0;
  const named = stragglers.filter(({ cost }) => 2 * cost >= top);
  return top < LEAST || 100 * top < NAMED * wall || 2 * named.length > ranks.length ? [] : named;
}

/** `31 %` */
export function percent(part: number, whole: number): string {
  return `${Math.floor((100 * part) / whole + 0.5)} %`;
}

function nobody({ wall, ranks }: Found, hasGivenUp: boolean): string[] {
  const waiting = sum(ranks.map(rank => rank.waiting)) / ranks.length;
  const exposed = sum(ranks.map(rank => rank.exposed)) / ranks.length;
  if (waiting >= 0.1 * wall && waiting >= exposed) {
    const what = hasGivenUp ? 'ranks that come no more' : 'each other in turn';
    return [`they wait for ${what}, ${percent(waiting, wall)} of the cell`];
  }
  return exposed >= 0.2 * wall
    ? [`${percent(exposed, wall)} of the cell is communication that nothing overlaps`]
    : [];
}

/** Which of the user's own spans they spend more time in; a span around all else says little. */
function ownCause(own: readonly OwnSpan[], who: readonly number[], cost: number): string {
  const isOne = who.length === 1;
  const [first] = own
    .map(({ name, times: spent }) => {
      const values = (isNamed: boolean): number[] =>
        [...spent].filter(([rank]) => who.includes(rank) === isNamed).map(([, time]) => time);
      const mine = Math.floor(sum(values(true)) / who.length);
      return { name, mine, rest: middle(values(false)) };
    })
    .filter(one => explains(one, who.length, cost))
    .map(one => ({ ...one, share: one.rest ? one.mine / one.rest : Infinity }))
    .sort((a, b) => (a.share === b.share ? 0 : b.share - a.share) || b.mine - b.rest - (a.mine - a.rest) || (a.name < b.name ? -1 : 1));
  if (!first) {
    return '';
  }
  const verb = isOne ? 'it spends' : 'they spend';
  return first.rest === 0
    ? `; only ${verb} time in ${first.name}`
    : `; ${verb} ${times(first.mine, first.rest)} the others' time in ${first.name}`;
}

function explains({ mine, rest }: { mine: number; rest: number }, count: number, cost: number): boolean {
  return 5 * mine >= 6 * rest && 2 * (mine - rest) * count >= cost;
}

/** Why they are late: they load data, or compute, for longer than the others do. */
function cause(ranks: readonly RankProfile[], who: readonly number[], cost: number): string {
  const isOne = who.length === 1;
  const found = (['data', 'compute'] as const)
    .map(what => {
      const values = (isNamed: boolean): number[] =>
        ranks.filter(({ rank }) => who.includes(rank) === isNamed).map(rank => rank[what]);
      const mine = Math.floor(sum(values(true)) / who.length);
      return { what, mine, rest: middle(values(false)) };
    })
    .filter(one => explains(one, who.length, cost))
    // Stable: data, if they are equal.
    .sort((a, b) => b.mine - b.rest - (a.mine - a.rest));
  if (found.length === 0) {
    return '';
  }
  const { what, mine, rest } = found[0];
  if (rest === 0) {
    const verb = what === 'data' ? ['loads data', 'load data'] : ['computes', 'compute'];
    return `; only ${isOne ? `it ${verb[0]}` : `they ${verb[1]}`}`;
  }
  const own = what === 'data' ? 'data loading' : 'own computing';
  return `; ${isOne ? 'its' : 'their'} ${own} takes ${times(mine, rest)} the others'`;
}

function times(mine: number, rest: number): string {
  return mine >= 10 * rest
    ? `${Math.floor(mine / rest + 0.5)} ×`
    : `${(Math.floor((10 * mine) / rest + 0.5) / 10).toFixed(1)} ×`;
}

function middle(values: number[]): number {
  const sorted = values.sort((a, b) => a - b);
  return Math.floor((sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2);
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
