/** Layout of the timeline's lanes: which there are, their heights, and their rows of spans. */
import { trans } from '../translation';
import type { Collectives } from './collectives';
import { partRows, STEP } from './parts';
import { type Row, stack } from './row';
import { meterName, type Meter, type Samples } from './samples';
import { catName, type OrderedColumns, type SpanSource } from './spans';

/** One painted line of the timeline; later layers are painted over earlier ones. */
export interface Line {
  y: number;
  height: number;
  layers: Layer[];
}

export interface Layer {
  row: Row;
  rank: number;
  cat: string;
  /** Whether the row holds waits and transfers; its `owners` are the spans that these are parts of. */
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
  /** Null if the lane cannot be opened. */
  isOpen: boolean | null;
  meter?: Meter;
}

const GAP = 2;
const LINE = 15;
const LEAST_LINE = 4;
const HIGHEST_LANE = 150;
const METER = 24;
/** Maximum number of tensors with a lane each; the rest share one. */
const TENSORS = 24;
/** Maximum rows of overlapping spans that a closed rank paints over each other, per category. */
const SHOWN_ROWS = 4;
/** In a closed rank, these categories are painted over the others: waiting covers working. */
const ON_TOP = ['data', 'wait'];

/** Return the heights of the two lines of a closed rank: its activity, and its collectives. */
function closedLines(ranks: number): [number, number] {
  return ranks <= 8 ? [14, 9] : ranks <= 16 ? [10, 7] : ranks <= 32 ? [8, 5] : [6, 4];
}

interface Cached<T> {
  length: number;
  order: number;
  collectives: Collectives | null;
  made: T;
}

interface Tensor {
  label: string;
  places: Uint32Array;
  count: number;
  time: number;
}

/** The rows of all lanes, built when they are laid out, and rebuilt when their spans change. */
export class Rows {
  /** The matched collectives; null until there are any. */
  collectives: Collectives | null = null;
  private rows = new Map<string, Cached<Row[]>>();
  private tensors = new Map<string, Cached<Map<string, Row[]>>>();

  constructor(readonly source: SpanSource) {}

  *layers(rank: number, cat: string): Generator<void, Layer[]> {
    const columns = this.source.columns(rank, cat);
    const collectives = cat === 'collective' && this.collectives?.fits(rank, columns) ? this.collectives : null;
    const rows = yield* cached(this.rows, `${rank}/${cat}`, columns, collectives, function* () {
      const made = collectives ? yield* partRows(rank, columns, collectives) : stack(columns);
      yield* built(made);
      return made;
    });
    const isParts = collectives !== null || (cat === 'collective' && this.source.isCut);
    return rows.map(row => ({ row, rank, cat, isParts }));
  }

  /** Return the rows of each tensor, longest total time first; beyond `TENSORS`, the rest share an entry. */
  byTensor(rank: number, cat: string): Generator<void, Map<string, Row[]>> {
    const columns = this.source.columns(rank, cat);
    const tensorOf = (number: number): string => String(this.source.name(rank, number).tensor ?? '');
    return cached(this.tensors, `${rank}/${cat}`, columns, null, () => split(columns, tensorOf));
  }

  hasTensors(rank: number, cat: string): boolean {
    const { name, length } = this.source.columns(rank, cat);
    // Spans of one category are alike, so a few are enough.
    for (let i = 0; i < Math.min(length, 20); i++) {
      if (this.source.name(rank, name[i]).tensor !== undefined) {
        return true;
      }
    }
    return false;
  }
}

/** Return the cached value for these columns; make it again if the columns or the collectives have changed. */
function* cached<T>(
  cache: Map<string, Cached<T>>,
  key: string,
  { length, order }: OrderedColumns,
  collectives: Collectives | null,
  make: () => Generator<void, T>
): Generator<void, T> {
  const known = cache.get(key);
  if (known && known.length === length && known.order === order && known.collectives === collectives) {
    return known.made;
  }
  yield;
  const made = yield* make();
  cache.set(key, { length, order, collectives, made });
  return made;
}

/** Build the blocks that painting needs. */
function* built(rows: readonly Row[]): Generator<void> {
  for (const row of rows) {
    yield* row.build();
    yield;
  }
}

function* split(columns: OrderedColumns, tensorOf: (number: number) => string): Generator<void, Map<string, Row[]>> {
  const { name, dur, length } = columns;
  const byName = new Map<number, Tensor>();
  const byTensor = new Map<string, Tensor>();
  for (let i = 0; i < length; i++) {
    let tensor = byName.get(name[i]);
    if (!tensor) {
      const label = tensorOf(name[i]);
      tensor = byTensor.get(label) ?? { label: label || trans.__('no tensor'), places: new Uint32Array(), count: 0, time: 0 };
      byTensor.set(label, tensor);
      byName.set(name[i], tensor);
    }
    tensor.count += 1;
    tensor.time += dur[i];
    if (i % STEP === 0) {
      yield;
    }
  }
  const sorted = [...byTensor.values()].sort((a, b) => b.time - a.time);
  const shown = sorted.length > TENSORS + 1 ? sorted.slice(0, TENSORS) : sorted;
  const others = new Set(sorted.slice(shown.length));
  if (others.size) {
    const rest = { label: trans.__('%1 more', others.size), places: new Uint32Array(), count: 0, time: 0 };
    others.forEach(({ count }) => (rest.count += count));
    byName.forEach((tensor, number) => others.has(tensor) && byName.set(number, rest));
    shown.push(rest);
  }
  for (const tensor of shown) {
    tensor.places = new Uint32Array(tensor.count);
    tensor.count = 0;
  }
  for (let i = 0; i < length; i++) {
    const tensor = byName.get(name[i])!;
    tensor.places[tensor.count++] = i;
    if (i % STEP === 0) {
      yield;
    }
  }
  const rows = new Map<string, Row[]>();
  for (const { label, places } of shown) {
    const own = stack(columns, places);
    rows.set(label, own);
    yield* built(own);
  }
  return rows;
}

/** Display options for the layout; `open` has the keys of the open lanes. */
export interface Shown {
  open: ReadonlySet<string>;
  /** Show utilization in closed ranks, too. */
  meters: boolean;
}

/** Lay out all lanes from top to bottom; return them and their total height. A step takes at most some milliseconds. */
export function* layOut(
  rows: Rows,
  samples: Samples,
  ranks: readonly number[],
  shown: Shown
): Generator<void, { lanes: Lane[]; height: number }> {
  const { source } = rows;
  const lanes: Lane[] = [];
  let y = GAP;
  const add = (lane: Omit<Lane, 'y' | 'height'>, height: number): void => {
    lane.lines.forEach(line => (line.y += y));
    lanes.push({ ...lane, y, height });
    y += height + GAP;
  };
  for (const rank of ranks) {
    const key = `${rank}`;
    const layers = new Map<string, Layer[]>();
    for (const cat of source.cats(rank)) {
      layers.set(cat, yield* rows.layers(rank, cat));
    }
    const isOpen = shown.open.has(key);
    const lines = closedRank(layers, closedLines(ranks.length));
    add({ key, kind: 'rank', rank, cat: '', label: String(rank), lines, isOpen }, heightOf(lines));
    for (const [cat, own] of isOpen ? layers : []) {
      const catKey = `${rank}/${cat}`;
      const hasMore = cat === 'phase' || rows.hasTensors(rank, cat);
      const isCatOpen = hasMore ? shown.open.has(catKey) : null;
      const catLines = stacked(own);
      add({ key: catKey, kind: 'cat', rank, cat, label: nameOf(cat), lines: catLines, isOpen: isCatOpen }, heightOf(catLines));
      for (const [tensor, tensorRows] of isCatOpen ? yield* rows.byTensor(rank, cat) : []) {
        const tensorLines = stacked(tensorRows.map(row => ({ row, rank, cat, isParts: false })));
        const tensorKey = `${catKey}/${tensor}`;
        add({ key: tensorKey, kind: 'tensor', rank, cat, label: tensor, lines: tensorLines, isOpen: null }, heightOf(tensorLines));
      }
    }
    for (const [meter] of isOpen || shown.meters ? samples.of(rank) : []) {
      const label = meterName(meter);
      add({ key: `${rank}:${meter}`, kind: 'meter', rank, cat: '', label, lines: [], isOpen: null, meter }, METER);
    }
  }
  return { lanes, height: y };
}

/** Return the label of a category's lane: `wait` spans name what the rank waits in, so their lane says "blocked". */
export function nameOf(cat: string): string {
  return cat === 'wait' ? trans.__('blocked') : catName(cat);
}

function heightOf(lines: readonly Line[]): number {
  const last = lines[lines.length - 1];
  return last ? last.y + last.height : LINE;
}

function closedRank(layers: ReadonlyMap<string, Layer[]>, [upper, lower]: [number, number]): Line[] {
  const cats = [...layers.keys()].filter(cat => cat !== 'collective');
  const doing = cats.filter(cat => cat !== 'phase');
  const above = [...doing.filter(cat => !ON_TOP.includes(cat)), ...ON_TOP.filter(cat => doing.includes(cat))];
  const first = (each: string[]): Layer[] => each.flatMap(cat => layers.get(cat)?.slice(0, SHOWN_ROWS) ?? []);
  return [
    { y: 0, height: upper, layers: first(above.length ? above : cats) },
    { y: upper + 1, height: lower, layers: first(['collective']) }
  ];
}

/** Return one line per row, with lower lines if there are many. */
function stacked(layers: Layer[]): Line[] {
  const height = Math.max(LEAST_LINE, Math.min(LINE, Math.floor(HIGHEST_LANE / Math.max(1, layers.length))));
  return layers.map((layer, i) => ({ y: i * height, height: height - (height > 8 ? 1 : 0), layers: [layer] }));
}
