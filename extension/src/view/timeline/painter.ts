/** Paints the timeline on its canvas: lanes, bands of collectives across them, and the selection. */
import type { Collective, Collectives } from '../../timeline/collectives';
import { css, inkOn } from '../../timeline/colours';
import type { Spot } from '../../timeline/find';
import type { Lane, Line } from '../../timeline/lanes';
import type { Label, Pixels } from '../../timeline/pixels';
import { TimeScale, type Range } from '../../timeline/range';
import type { Samples } from '../../timeline/samples';
import type { SpanSource } from '../../timeline/spans';
import { paintMeter } from './meter';
import type { Theme } from './theme';

/** Minimum width in pixels of a collective that is painted as a band. */
const NARROWEST = 3;
/** Maximum number of pieces of bands, each from one rank to the next; beyond it, narrower bands are left out. */
const MOST_PIECES = 4_000;
const MOST_LOOKED_AT = 6_000;
const MOST_LABELS = 400;
const LOWEST_LABEL = 11;
const MANY_LINES = 100;

export interface Scene {
  lanes: readonly Lane[];
  scale: TimeScale;
  /** How many pixels of the timeline are above the canvas. */
  top: number;
  height: number;
  ratio: number;
  collectives: Collectives | null;
  chosen: Spot | null;
  hovered: Spot | null;
  part: Range | null;
  moment: number | null;
}

interface Zone {
  top: number;
  bottom: number;
}

export class Painter {
  private context: CanvasRenderingContext2D | null;
  private buffer = document.createElement('canvas');
  private image: ImageData | null = null;

  constructor(
    private canvas: HTMLCanvasElement,
    private spans: SpanSource,
    private samples: Samples,
    readonly pixels: Pixels,
    private theme: Theme
  ) {
    this.context = canvas.getContext('2d', { alpha: false });
  }

  paint(scene: Scene): void {
    const { context, canvas } = this;
    const { ratio, height, scale } = scene;
    const [width, rows] = [Math.max(1, scale.width), Math.max(1, Math.round(height * ratio))];
    if (canvas.width !== width || canvas.height !== rows) {
      canvas.width = width;
      canvas.height = rows;
    }
    if (!context) {
      return;
    }
    context.imageSmoothingEnabled = false;
    context.fillStyle = css(this.theme.palette.background);
    context.fillRect(0, 0, width, rows);
    context.setTransform(1, 0, 0, ratio, 0, -scene.top * ratio);
    const seen = scene.lanes.filter(({ y, height: h }) => y + h >= scene.top && y <= scene.top + height);
    this.separate(scene, seen);
    const labels = this.paintLines(seen.flatMap(({ lines }) => lines), scale);
    for (const lane of seen) {
      if (lane.meter) {
        paintMeter(context, this.samples.of(lane.rank), lane, scale, this.theme);
      }
    }
    this.paintBands(scene);
    this.paintOver(scene, seen);
    context.setTransform(1, 0, 0, 1, 0, 0);
    this.paintLabels(labels, scene);
  }

  private separate({ scale }: Scene, lanes: readonly Lane[]): void {
    const context = this.context!;
    context.fillStyle = this.theme.line;
    for (const { kind, y } of lanes) {
      if (kind === 'rank') {
        context.fillRect(0, y - 1.5, scale.width, 0.5);
      }
    }
  }

  /** Render all lines to one image with a row of pixels each, then draw each row at the line's height. */
  private paintLines(lines: readonly Line[], scale: TimeScale): Array<Label & { line: Line }> {
    const { buffer, pixels } = this;
    const context = this.context!;
    // So many lines are low, and lose nothing with half the pixels.
    const coarse = lines.length > MANY_LINES ? 2 : 1;
    const width = Math.max(1, Math.ceil(scale.width / coarse));
    const seen = new TimeScale(scale.range, width);
    const into = buffer.getContext('2d');
    if (lines.length === 0 || !into) {
      return [];
    }
    if (!this.image || this.image.width !== width || this.image.height < lines.length) {
      buffer.width = width;
      buffer.height = lines.length + 16;
      this.image = new ImageData(width, buffer.height);
    }
    const out = new Uint32Array(this.image.data.buffer);
    const labels = lines.flatMap((line, i) =>
      pixels.line(line, seen, out, i * width).map(label => ({
        ...label, line, x: label.x * coarse, width: label.width * coarse
      }))
    );
    into.putImageData(this.image, 0, 0, 0, 0, width, lines.length);
    lines.forEach(({ y, height }, i) => context.drawImage(buffer, 0, i, width, 1, 0, y, scale.width, height));
    return labels;
  }

  private paintLabels(labels: ReadonlyArray<Label & { line: Line }>, { ratio, top }: Scene): void {
    const context = this.context!;
    context.font = `${Math.round(10 * ratio)}px ${this.theme.font}`;
    context.textBaseline = 'middle';
    const wide = labels.filter(({ line }) => line.height >= LOWEST_LABEL && line.layers.length === 1);
    for (const { layer, i, x, width, colour, line } of wide.slice(0, MOST_LABELS)) {
      const text = this.nameOf(layer.rank, layer.cat, layer.row.owners ? layer.row.owners[layer.row.place(i)] : layer.row.place(i));
      // About as many letters as fit; `fillText` squeezes text that is still too wide.
      const room = Math.floor((width - 6 * ratio) / (5.5 * ratio));
      if (room >= 3) {
        context.fillStyle = inkOn(colour);
        const cut = text.length > room ? `${text.slice(0, room - 1)}…` : text;
        context.fillText(cut, x + 3 * ratio, (line.y - top + line.height / 2) * ratio, width - 4 * ratio);
      }
    }
  }

  private nameOf(rank: number, cat: string, place: number): string {
    return this.spans.name(rank, this.spans.columns(rank, cat).name[place]).name;
  }

  private paintBands(scene: Scene): void {
    const { collectives, chosen, scale } = scene;
    if (!collectives) {
      return;
    }
    const zones = collectiveZones(scene.lanes);
    const on = placeOf(chosen, collectives, this.spans);
    for (const i of wideBands(collectives, scale, MOST_PIECES / Math.max(1, zones.size))) {
      if (i !== on) {
        this.paintBand(collectives.at(i), zones, scene, 0.16);
      }
    }
    if (on >= 0) {
      this.paintBand(collectives.at(on), zones, scene, 0.45);
    }
  }

  /** Paint a collective from rank to rank: the waits up to the last arrival, then the transfer. */
  private paintBand(one: Collective, zones: ReadonlyMap<number, Zone>, scene: Scene, alpha: number): void {
    const context = this.context!;
    const { scale, top, height } = scene;
    const { wait, transfer } = this.theme.palette;
    const x = (t: number): number => Math.min(Math.max(scale.x(t), -10), scale.width + 10);
    const fill = (lefts: readonly number[], rights: readonly number[], colour: number): void => {
      context.fillStyle = css(colour, alpha);
      context.beginPath();
      for (let i = 1; i < one.ranks.length; i++) {
        const [above, below] = [zones.get(one.ranks[i - 1]), zones.get(one.ranks[i])];
        if (above && below && below.top >= top && above.bottom <= top + height) {
          context.moveTo(x(lefts[i - 1]), above.bottom);
          context.lineTo(x(rights[i - 1]), above.bottom);
          context.lineTo(x(rights[i]), below.top);
          context.lineTo(x(lefts[i]), below.top);
        }
      }
      context.fill();
    };
    fill(one.starts, one.cuts, wait);
    fill(one.cuts, one.ends, transfer);
    const late = zones.get(one.straggler);
    if (late && one.spread > 0 && one.spread / scale.perPixel >= NARROWEST) {
      context.fillStyle = this.theme.ink;
      context.fillRect(x(one.last) - 1, late.top - 1, 2, late.bottom - late.top + 2);
    }
  }

  private paintOver(scene: Scene, lanes: readonly Lane[]): void {
    const context = this.context!;
    const { scale, part, moment, top, height } = scene;
    if (scene.hovered) {
      this.outline(scene.hovered, lanes, scale, this.theme.faint, scene.ratio);
    }
    if (scene.chosen) {
      this.outline(scene.chosen, lanes, scale, this.theme.ink, 2 * scene.ratio);
    }
    if (part) {
      const [left, right] = [scale.x(part.from), scale.x(part.to)];
      context.fillStyle = this.theme.accent;
      context.globalAlpha = 0.14;
      context.fillRect(left, top, right - left, height);
      context.globalAlpha = 1;
      context.fillRect(left - 1, top, 1, height);
      context.fillRect(right, top, 1, height);
    }
    if (moment !== null) {
      context.fillStyle = this.theme.accent;
      context.fillRect(Math.round(scale.x(moment)) - 1, top, 2, height);
    }
  }

  private outline({ rank, cat, i }: Spot, lanes: readonly Lane[], scale: TimeScale, colour: string, thick: number): void {
    const context = this.context!;
    const { start, dur } = this.spans.columns(rank, cat);
    const [left, right] = [scale.x(start[i]), scale.x(start[i] + dur[i])];
    context.fillStyle = colour;
    for (const { y, height } of linesOf(lanes, rank, cat, start[i], start[i] + dur[i])) {
      const [x0, x1] = [Math.max(left, -4), Math.min(Math.max(right, left + 2), scale.width + 4)];
      context.fillRect(x0, y, x1 - x0, 1);
      context.fillRect(x0, y + height - 1, x1 - x0, 1);
      context.fillRect(x0 - thick / 2, y, thick, height);
      context.fillRect(x1 - thick / 2, y, thick, height);
    }
  }
}

/** Return the visible collectives that are wide enough for bands: the `most` widest; none if too many are visible. */
export function wideBands(collectives: Collectives, scale: TimeScale, most: number): number[] {
  const [from, to] = collectives.in(scale.range);
  const found: Array<[number, number]> = [];
  for (let i = from; i < to && to - from <= MOST_LOOKED_AT; i++) {
    const extent = collectives.extentOf(i);
    const width = (extent.to - extent.from) / scale.perPixel;
    if (width >= NARROWEST) {
      found.push([i, width]);
    }
  }
  return found.sort(([, a], [, b]) => b - a).slice(0, most).map(([i]) => i);
}

/** Yield the lines on which a span is painted. */
export function* linesOf(
  lanes: readonly Lane[],
  rank: number,
  cat: string,
  from: number,
  to: number
): Generator<Line> {
  for (const lane of lanes) {
    if (lane.rank !== rank) {
      continue;
    }
    for (const line of lane.lines) {
      const isHere = line.layers.some(layer => {
        const at = layer.cat === cat ? layer.row.at((from + to) / 2, (to - from) / 2 + 1) : -1;
        return at >= 0 && layer.row.start(at) >= from && layer.row.end(at) <= to;
      });
      if (isHere) {
        yield line;
      }
    }
  }
}

/** Return where each rank's collectives are, from top to bottom. */
function collectiveZones(lanes: readonly Lane[]): Map<number, Zone> {
  const zones = new Map<number, Zone>();
  for (const { kind, rank, cat, y, height, lines, isOpen } of lanes) {
    if (kind === 'rank' && !isOpen && lines.length) {
      const line = lines[lines.length - 1];
      zones.set(rank, { top: line.y, bottom: line.y + line.height });
    } else if (kind === 'cat' && cat === 'collective') {
      zones.set(rank, { top: y, bottom: y + height });
    }
  }
  return zones;
}

/** Return the index of a span's collective; -1 for none, or if spans have moved since they were matched. */
function placeOf(chosen: Spot | null, collectives: Collectives | null, spans: SpanSource): number {
  const isMatched = chosen?.cat === 'collective' && collectives?.fits(chosen.rank, spans.columns(chosen.rank, chosen.cat));
  return isMatched ? collectives!.of(chosen!.rank, chosen!.i) : -1;
}

export function collectiveOf(chosen: Spot | null, collectives: Collectives | null, spans: SpanSource): Collective | null {
  const on = placeOf(chosen, collectives, spans);
  return on < 0 ? null : collectives!.at(on);
}
