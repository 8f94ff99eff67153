/** Descriptions of spans and collectives in words. */
import type { SpanName } from '../schema';
import { trans } from '../translation';
import { grouped } from '../words';
import { size } from './amounts';
import type { Collective } from './collectives';
import { lasting } from './range';

/** Return the arguments of a span's name with their values as text: `bytes`, `4.1 kB`. */
export function argsOf(name: SpanName): Array<[string, string]> {
  return Object.entries(name)
    .filter(([key, value]) => key !== 'name' && value !== undefined && value !== null)
    .map(([key, value]) => [label(key), key === 'bytes' ? size(Number(value)) : plain(value)]);
}

/** Return an argument's name in the user's language; those of other programs' traces stay as they are. */
function label(key: string): string {
  const labels: { [key: string]: string } = {
    op: trans.__('op'), tensor: trans.__('tensor'), library: trans.__('library'), group: trans.__('group'), ranks: trans.__('ranks'),
    bytes: trans.__('bytes'), dtype: trans.__('dtype'), shape: trans.__('shape'), line: trans.__('line')
  };
  return labels[key] ?? key;
}

function plain(value: unknown): string {
  if (Array.isArray(value)) {
    return value.join(' × ').slice(0, 200) || '–';
  }
  return (typeof value === 'object' ? JSON.stringify(value) : String(value)).slice(0, 400);
}

/** `allreduce grad.3`. */
export function title({ op, tensor }: Pick<Collective, 'op' | 'tensor'>): string {
  return [op, tensor].filter(Boolean).join(' ') || trans.__('collective');
}

/** Say which rank arrived last at a collective, and by how much; or which ranks waited in vain. */
export function who(collective: Collective): string {
  const { ranks, starts, cuts, ends, last, straggler, cost, absent, givenUp } = collective;
  const count = absent.length;
  if (givenUp.length) {
    const missing = ` ${trans._n('Rank %2 did not take part.', 'Ranks %2 did not take part.', count, listed(absent))}`;
    const longest = Math.max(...givenUp.map(rank => ranks.indexOf(rank)).map(i => cuts[i] - starts[i]));
    return trans._n('Rank %2 waited %3 in vain.', 'Ranks %2 waited in vain, up to %3.', givenUp.length, listed(givenUp), lasting(longest)) + missing;
  }
  // The last spans of a killed rank are lost.
  const missing = count ? ` ${trans._n('No span of rank %2 is known.', 'No spans of ranks %2 are known.', count, listed(absent))}` : '';
  if (ranks.length < 2) {
    return trans.__('Only rank %1 is known to have taken part.', ranks[0] ?? straggler) + missing;
  }
  const spread = last - Math.min(...starts);
  if (spread <= 0) {
    return trans.__('All %1 ranks arrived at the same time; the transfer took %2.', ranks.length, lasting(Math.max(...ends) - last)) + missing;
  }
  const first = ranks[starts.indexOf(Math.min(...starts))];
  const waited = starts.reduce((sum, start, i) => sum + cuts[i] - start, 0);
  const late = ranks.length > 2
    ? trans.__(
        'Rank %1 arrived last: %2 after rank %3, the first, and %4 after the median of the others.',
        straggler, lasting(spread), first, lasting(cost)
      )
    : trans.__('Rank %1 arrived last: %2 after rank %3, the first.', straggler, lasting(spread), first);
  const took = lasting(Math.max(0, Math.max(...ends) - last));
  return `${late} ${trans.__('The ranks waited %1 in total; the transfer then took %2.', lasting(waited), took)}${missing}`;
}

function listed(ranks: readonly number[]): string {
  return `${ranks.slice(0, 8).join(', ')}${ranks.length > 8 ? ', …' : ''}`;
}

export interface Arrival {
  rank: number;
  /** Microseconds after the first arrival. */
  after: number;
  wait: number;
  transfer: number;
  isLast: boolean;
}

/** Return each rank's part in a collective, in order of arrival. */
export function arrivals({ ranks, starts, cuts, ends, straggler }: Collective): Arrival[] {
  const first = Math.min(...starts);
  return ranks
    .map((rank, i) => ({
      rank, after: starts[i] - first, wait: cuts[i] - starts[i], transfer: ends[i] - cuts[i], isLast: rank === straggler
    }))
    .sort((a, b) => a.after - b.after || a.rank - b.rank);
}

/** Why spans were dropped: the reasons in docs/profile-rules.md, in words. */
const WHY = (): { [reason: string]: string } => ({
  far: trans.__('a time far from the run'),
  length: trans.__('columns of unequal length'),
  name: trans.__('no name'),
  negative: trans.__('a negative duration'),
  number: trans.__('a time that is not a whole number'),
  rank: trans.__('a rank that is not in the run')
});

/** Say how many spans were dropped and why: `3 spans dropped: 2 × a negative duration, 1 × …`. */
export function droppedWords(dropped: ReadonlyMap<string, number>): string {
  const count = [...dropped.values()].reduce((sum, each) => sum + each, 0);
  if (count === 0) {
    return '';
  }
  const words = WHY();
  const why = [...dropped].map(([reason, each]) => `${each.toLocaleString('en')} × ${words[reason] ?? reason}`).join(', ');
  return trans._n('%2 span dropped: %3', '%2 spans dropped: %3', count, grouped(count), why);
}
