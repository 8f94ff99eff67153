/** Which lanes the picture has, how high they are, and which rows of spans are in them. */
import { trans } from '../translation';
import type { Collectives } from './collectives';
import type { GrowingColumns } from './columns';
import { partRows } from './parts';
import { Row, stack } from './row';
import { meterName, type Meter, type Samples } from './samples';
import { catName, type Spans } from './spans';

/** One line of the picture; later layers are painted over earlier ones. */
export interface Line {
  y: number;
  height: number;
  layers: Layer[];
}

export interface Layer {
  row: Row;
  rank: number;
  cat: string;
  /** The row holds waits and transfers, and its owners are the spans. */
  isParts: boolean;
}

export interface Lane {
  key: string;
  kind: 'rank' | 'cat' | 'tensor' | 'meter';
  rank: number;
  cat: string;
  label: string;
  y: number;
  height: number;
  lines: Line[];
  /** Null where there is nothing to open. */
  isOpen: boolean | null;
  meter?: Meter;
}

const GAP = 2;
const LINE = 15;
const LEAST_LINE = 4;
const HIGHEST_LANE = 150;
const METER = 24;
/** More tensors than these are not listed one by one. */
const TENSORS = 24;
/** Rows of overlapping spans that a closed rank shows over each other. */
const SHOWN_ROWS = 4;
/** In a closed rank, what one waits for is painted over what one does. */
const ON_TOP = ['data', 'wait'];

/** How high the two lines of a closed rank are: what it does, and its collectives. */
function closedLines(ranks: number): [number, number] {
  return ranks <= 8 ? [14, 9] : ranks <= 16 ? [10, 7] : ranks <= 32 ? [8, 5] : [6, 4];
}

interface Cached {
  length: number;
  order: number;
  collectives: Collectives | null;
  rows: Row[];
}

/** The rows of all lanes, made when they are first painted and again when there is more. */
export class Rows {
  /** As far as they are matched. */
  collectives: Collectives | null = null;
  private plain = new Map<string, Cached>();
  private parts = new Map<string, Cached>();
  private tensors = new Map<string, { cached: Cached; rows: Map<string, Row[]> }>();

  constructor(private source: Spans) {}

  of(rank: number, cat: string): Row[] {
    return this.cached(this.plain, rank, cat, columns => stack(columns));
  }

  layers(rank: number, cat: string): Layer[] {
    const isParts = cat === 'collective' && this.isMatched(rank);
    const { collectives } = this;
    const rows = isParts
      ? this.cached(this.parts, rank, cat, columns => partRows(rank, columns, collectives!))
      : this.of(rank, cat);
    return rows.map(row => ({ row, rank, cat, isParts }));
  }

  /** The spans of each tensor, those that take longest first; the rest together. */
  byTensor(rank: number, cat: string): Map<string, Row[]> {
    const key = `${rank}/${cat}`;
    const columns = this.source.columns(rank, cat);
    const known = this.tensors.get(key);
    if (known && isFresh(known.cached, columns, null)) {
      return known.rows;
    }
    const rows = split(columns, number => String(this.source.name(rank, number).tensor ?? ''));
    this.tensors.set(key, { cached: { ...freshness(columns, null), rows: [] }, rows });
    return rows;
  }

  hasTensors(rank: number, cat: string): boolean {
    const { name, length } = this.source.columns(rank, cat);
    // Spans of one kind are alike: some of them tell.
    for (let i = 0; i < Math.min(length, 20); i++) {
      if (this.source.name(rank, name[i]).tensor !== undefined) {
        return true;
      }
    }
    return false;
  }

  private isMatched(rank: number): boolean {
    return this.collectives?.fits(rank, this.source.columns(rank, 'collective')) ?? false;
  }

  private cached(
    cache: Map<string, Cached>,
    rank: number,
    cat: string,
    make: (columns: GrowingColumns) => Row[]
  ): Row[] {
    const key = `${rank}/${cat}`;
    const columns = this.source.columns(rank, cat);
    const collectives = cache === this.parts ? this.collectives : null;
    let known = cache.get(key);
    if (!known || !isFresh(known, columns, collectives)) {
      known = { ...freshness(columns, collectives), rows: make(columns) };
      cache.set(key, known);
    }
    return known.rows;
  }
}

function freshness({ length, order }: GrowingColumns, collectives: Collectives | null): Omit<Cached, 'rows'> {
  return { length, order, collectives };
}

function isFresh(cached: Cached, { length, order }: GrowingColumns, collectives: Collectives | null): boolean {
  return cached.length === length && cached.order === order && cached.collectives === collectives;
}

function split(columns: GrowingColumns, tensorOf: (number: number) => string): Map<string, Row[]> {
  const names = new Map<number, string>();
  const found = new Map<string, { places: number[]; time: number }>();
  for (let i = 0; i < columns.length; i++) {
    const number = columns.name[i];
    let tensor = names.get(number);
    if (tensor === undefined) {
      tensor = tensorOf(number);
      names.set(number, tensor);
    }
    let each = found.get(tensor);
    if (!each) {
      each = { places: [], time: 0 };
      found.set(tensor, each);
    }
    each.places.push(i);
    each.time += columns.dur[i];
  }
  const sorted = [...found].sort((a, b) => b[1].time - a[1].time);
  const shown = sorted.slice(0, sorted.length > TENSORS + 1 ? TENSORS : sorted.length);
  const rest = sorted.slice(shown.length);
  const rows = new Map(shown.map(([tensor, { places }]) => [tensor || trans.__('no tensor'), stackPlaces(columns, places)]));
  if (rest.length) {
    const places = rest.flatMap(([, each]) => each.places).sort((a, b) => a - b);
    rows.set(trans.__('%1 more', rest.length), stackPlaces(columns, places));
  }
  return rows;
}

/** Rows of some of the spans; their places stay those in the columns. */
function stackPlaces(columns: GrowingColumns, places: number[]): Row[] {
  const all = Uint32Array.from(places);
  const some = {
    start: Float64Array.from(all, i => columns.start[i]),
    dur: Float64Array.from(all, i => columns.dur[i]),
    name: Uint32Array.from(all, i => columns.name[i]),
    length: all.length
  };
  return stack(some).map(row => {
    const own = new Uint32Array(row.length).map((_, i) => all[row.place(i)]);
    return new Row(columns, own);
  });
}

/** What is open, beside what there is. */
export interface Shown {
  open: ReadonlySet<string>;
  /** Show utilisation in closed ranks, too. */
  meters: boolean;
}

/** All lanes from top to bottom, and how high they are together. */
export function layOut(
  source: Spans,
  rows: Rows,
  samples: Samples,
  ranks: readonly number[],
  shown: Shown
): { lanes: Lane[]; height: number } {
  const lanes: Lane[] = [];
  let y = GAP;
  const add = (lane: Omit<Lane, 'y' | 'height'>, height: number): void => {
    lane.lines.forEach(line => (line.y += y));
    lanes.push({ ...lane, y, height });
    y += height + GAP;
  };
  for (const rank of ranks) {
    const key = `${rank}`;
    const cats = source.cats(rank);
    const isOpen = shown.open.has(key);
    const lines = closedRank(rows, rank, cats, closedLines(ranks.length));
    add({ key, kind: 'rank', rank, cat: '', label: String(rank), lines, isOpen }, heightOf(lines));
    for (const cat of isOpen ? cats : []) {
      const catKey = `${rank}/${cat}`;
      const hasMore = cat === 'phase' || rows.hasTensors(rank, cat);
      const isCatOpen = hasMore ? shown.open.has(catKey) : null;
      const layers = rows.layers(rank, cat);
      const catLines = stacked(layers);
      add({ key: catKey, kind: 'cat', rank, cat, label: nameOf(cat), lines: catLines, isOpen: isCatOpen }, heightOf(catLines));
      for (const [tensor, tensorRows] of isCatOpen ? rows.byTensor(rank, cat) : []) {
        const own = stacked(tensorRows.map(row => ({ row, rank, cat, isParts: false })));
        const tensorKey = `${catKey}/${tensor}`;
        add({ key: tensorKey, kind: 'tensor', rank, cat, label: tensor, lines: own, isOpen: null }, heightOf(own));
      }
    }
    for (const [meter] of isOpen || shown.meters ? samples.of(rank) : []) {
      const label = meterName(meter);
      add({ key: `${rank}:${meter}`, kind: 'meter', rank, cat: '', label, lines: [], isOpen: null, meter }, METER);
    }
  }
  return { lanes, height: y };
}

/** A category as people read it: its spans say what a rank waits in, and it is blocked meanwhile. */
export function nameOf(cat: string): string {
  return cat === 'wait' ? trans.__('blocked') : catName(cat);
}

function heightOf(lines: readonly Line[]): number {
  const last = lines[lines.length - 1];
  return last ? last.y + last.height : LINE;
}

function closedRank(rows: Rows, rank: number, cats: string[], [upper, lower]: [number, number]): Line[] {
  const below = cats.filter(cat => cat === 'collective');
  const doing = cats.filter(cat => cat !== 'collective' && cat !== 'phase');
  const above = [...doing.filter(cat => !ON_TOP.includes(cat)), ...ON_TOP.filter(cat => doing.includes(cat))];
  const layers = (each: string[]): Layer[] => each.flatMap(cat => rows.layers(rank, cat).slice(0, SHOWN_ROWS));
  return [
    { y: 0, height: upper, layers: layers(above.length ? above : cats.filter(cat => cat !== 'collective')) },
    { y: upper + 1, height: lower, layers: layers(below) }
  ];
}

/** One line for each row, lower ones when there are many. */
function stacked(layers: Layer[]): Line[] {
  const height = Math.max(LEAST_LINE, Math.min(LINE, Math.floor(HIGHEST_LANE / Math.max(1, layers.length))));
  return layers.map((layer, i) => ({ y: i * height, height: height - (height > 8 ? 1 : 0), layers: [layer] }));
}
