/** The user's own spans: how long each rank spent in them while nothing held it up. */
import { Gathering, intersection, lengthOf, type Intervals } from './intervals';
import type { SpanSource } from './spans';

const CATEGORY = 'user';
/** Characters of a name that is said in a sentence. */
const LONGEST = 40;

export interface OwnSpan {
  name: string;
  /** Microseconds of each rank. */
  times: Map<number, number>;
}

/** Those that may have cost so much on the ranks `who`; none if there are none such ranks. */
export function* ownSpans(
  source: SpanSource,
  free: ReadonlyMap<number, Intervals>,
  who: readonly number[],
  cost: number
): Generator<void, OwnSpan[]> {
  const longest = new Map<string, number>();
  for (const rank of who) {
    const { name, dur, length } = source.columns(rank, CATEGORY);
    for (let i = 0; i < length; i++) {
      const said = source.name(rank, name[i]).name;
      longest.set(said, (longest.get(said) ?? 0) + dur[i]);
    }
    yield;
  }
  const chosen = [...longest].filter(([name, dur]) => 2 * dur >= cost && isPlain(name)).map(([name]) => name);
  const found = new Map(chosen.map(name => [name, { name, times: new Map<number, number>() }]));
  for (const [rank, intervals] of chosen.length ? free : []) {
    const gathered = new Map(chosen.map(name => [name, new Gathering(-Infinity, Infinity)]));
    const { name, start, dur, length } = source.columns(rank, CATEGORY);
    for (let i = 0; i < length; i++) {
      gathered.get(source.name(rank, name[i]).name)?.add(start[i], start[i] + dur[i]);
    }
    for (const [said, spans] of gathered) {
      found.get(said)!.times.set(rank, lengthOf(intersection(spans.union(), intervals)));
    }
    yield;
  }
  return [...found.values()];
}

function isPlain(name: string): boolean {
  const characters = [...name];
  return characters.length > 0 && characters.length <= LONGEST && !characters.some(each => each < ' ' || each === '\x7f');
}
