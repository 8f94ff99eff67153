/** The timeline's colors, read from the style sheet, as they differ between light and dark themes. */
import { COLOURS } from '../../ranks';
import { pack, type Colour, type Palette } from '../../timeline/colours';

const CATS = ['cell', 'step', 'data', 'user', 'wait', 'collective', 'unrecorded'];
const NAMES = 7;

export interface Theme {
  palette: Palette;
  ink: string;
  faint: string;
  line: string;
  accent: string;
  font: string;
  meters: { [meter: string]: string };
  /** The colors of ranks 0 to 7; others share them. */
  ranks: string[];
  /** Changes when anything else does. */
  key: string;
}

export function readTheme(node: HTMLElement): Theme {
  const style = getComputedStyle(node);
  const text = (name: string): string => style.getPropertyValue(name).trim();
  const colour = (name: string): Colour => parse(text(name));
  const theme = {
    palette: {
      background: colour('--jp-layout-color0'),
      wait: colour('--rr-t-waiting'),
      transfer: colour('--rr-t-transfer'),
      cats: Object.fromEntries(CATS.map(cat => [cat, colour(`--rr-t-${cat}`)])),
      names: Array.from({ length: NAMES }, (_, i) => colour(`--rr-t-name${i}`))
    },
    ink: text('--jp-ui-font-color1'),
    faint: text('--jp-ui-font-color2'),
    line: text('--jp-border-color2'),
    accent: text('--jp-brand-color1'),
    font: text('--jp-ui-font-family') || 'sans-serif',
    meters: {
      cpu: text('--rr-t-step'),
      gpu: text('--rr-t-name1'),
      memory: text('--rr-t-user'),
      gpu_memory: text('--rr-t-name4')
    },
    ranks: Array.from({ length: COLOURS }, (_, i) => text(`--rr-c${i}`))
  };
  return { ...theme, key: JSON.stringify(theme) };
}

let probe: CanvasRenderingContext2D | null = null;
const parsed = new Map<string, Colour>();

function parse(text: string): Colour {
  const known = parsed.get(text) ?? asked(text);
  parsed.set(text, known);
  return known;
}

/** Convert any CSS color, by painting a pixel with it and reading that back. */
function asked(text: string): Colour {
  probe ??= document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  if (!probe) {
    return pack(128, 128, 128);
  }
  probe.canvas.width = probe.canvas.height = 1;
  probe.fillStyle = '#808080';
  probe.fillStyle = text;
  probe.fillRect(0, 0, 1, 1);
  const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
  return pack(red, green, blue);
}
