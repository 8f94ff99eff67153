/** Renders each line of the timeline to one row of pixels, which the painter stretches to the line's height. */
import { dye, mix, type Colour, type Dye, type Palette } from './colours';
import { WAIT } from './parts';
import type { Layer, Line } from './lanes';
import type { TimeScale } from './range';
import { marked, type Row } from './row';
import type { Search } from './find';
import type { SpanSource } from './spans';
import { Strip, type Wide } from './strip';

/** Minimum opacity, so that even slightly covered pixels are visible. */
const FAINTEST = 0.3;
const EDGE = 0.55;
const DIMMED = 0.25;
/** Milliseconds per frame for finding the matches of a search; the rest is left to the next frame. */
const FINDING = 8;

export interface Label extends Wide {
  layer: Layer;
  colour: Colour;
}

export class Pixels {
  private strip = new Strip(0);
  private dyes = new Map<string, Dye>();
  private found = new WeakMap<Row, Row>();
  private search: Search | null = null;
  private until: number | null = null;
  /** Whether some matches of the search are not marked in this frame yet. */
  isBehind = false;

  constructor(
    private source: SpanSource,
    private palette: Palette
  ) {}

  /** Clear the cached colors, as more names may be known now. */
  forgetNames(): void {
    this.dyes.clear();
  }

  setSearch(search: Search | null): void {
    this.search = search;
    this.found = new WeakMap();
  }

  /** Begin a new frame. */
  begin(): void {
    this.until = null;
    this.isBehind = false;
  }

  /** Render a line into `out`, starting at index `at`; return the spans that are wide enough for a label. */
  line(line: Line, scale: TimeScale, out: Uint32Array, at: number, search = this.search): Label[] {
    const { width } = scale;
    if (this.strip.width !== width) {
      this.strip = new Strip(width);
    }
    out.fill(this.palette.background, at, at + width);
    const labels: Label[] = [];
    for (const layer of line.layers) {
      const colour = this.dye(layer);
      const wide = this.layer(layer.row, scale, out, at, colour, search ? DIMMED : 1);
      labels.push(...wide.map(each => ({ ...each, layer, colour: colour(layer.row.name(each.i)) })));
      const matches = search && this.matches(layer, search);
      if (matches) {
        this.layer(matches, scale, out, at, colour, 1);
      }
    }
    return labels;
  }

  private layer(row: Row, scale: TimeScale, out: Uint32Array, at: number, colour: Dye, strength: number): Wide[] {
    const { strip } = this;
    strip.clear();
    strip.add(row, scale);
    const { cover, name, edge, width } = strip;
    for (let x = 0; x < width; x++) {
      if (cover[x] > 0) {
        const share = strength * (FAINTEST + (1 - FAINTEST) * cover[x]) * (edge[x] ? EDGE : 1);
        out[at + x] = mix(out[at + x], colour(name[x]), share);
      }
    }
    return strip.wide;
  }

  private matches({ row, rank, cat }: Layer, search: Search): Row | null {
    let found = this.found.get(row);
    if (!found) {
      const now = performance.now();
      this.until ??= now + FINDING; // at least one row per frame, however slow the browser is
      this.isBehind ||= now > this.until;
      if (this.isBehind) {
        return null;
      }
      const isMarked = search.marker(rank);
      const { name } = this.source.columns(rank, cat);
      found = marked(row, place => isMarked(name[row.owners ? row.owners[place] : place]));
      this.found.set(row, found);
    }
    return found;
  }

  private dye({ rank, cat, isParts }: Layer): Dye {
    if (isParts) {
      return name => (name === WAIT ? this.palette.wait : this.palette.transfer);
    }
    const key = `${rank}/${cat}`;
    let colour = this.dyes.get(key);
    if (!colour) {
      colour = dye(this.palette, this.source, rank, cat);
      this.dyes.set(key, colour);
    }
    return colour;
  }
}
