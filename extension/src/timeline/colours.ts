/** Colors of spans: by category, or by name if the category has no color of its own. */
import type { SpanSource } from './spans';

/** A color packed as in a canvas's pixels: 0xAABBGGRR. */
export type Colour = number;

export interface Palette {
  background: Colour;
  wait: Colour;
  transfer: Colour;
  cats: { [cat: string]: Colour };
  /** For spans that are colored by name. */
  names: Colour[];
}

/** Maps a name's number to its color, for one rank and category; results are cached. */
export type Dye = (name: number) => Colour;

export function dye(palette: Palette, source: SpanSource, rank: number, cat: string): Dye {
  const own = palette.cats[cat];
  if (own !== undefined) {
    return () => own;
  }
  const known: Colour[] = [];
  return number => {
    if (number >= 1 << 20) {
      return nameColour(palette, source.name(rank, number).name);
    }
    return (known[number] ??= nameColour(palette, source.name(rank, number).name));
  };
}

export function nameColour({ names }: Palette, name: string): Colour {
  let hash = 2166136261;
  for (let i = 0; i < name.length && i < 100; i++) {
    hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  }
  return names[(hash >>> 8) % names.length];
}

export function pack(red: number, green: number, blue: number): Colour {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** Blend `above` over `below`; `share` is its opacity, 0 to 1. */
export function mix(below: Colour, above: Colour, share: number): Colour {
  const [r, g, b] = [below & 255, (below >>> 8) & 255, (below >>> 16) & 255];
  const red = (r + ((above & 255) - r) * share) | 0;
  const green = (g + (((above >>> 8) & 255) - g) * share) | 0;
  const blue = (b + (((above >>> 16) & 255) - b) * share) | 0;
  return pack(red, green, blue);
}

/** Return the color in CSS notation. */
export function css(colour: Colour, alpha = 1): string {
  return `rgba(${colour & 255}, ${(colour >>> 8) & 255}, ${(colour >>> 16) & 255}, ${alpha})`;
}

/** Return black or white, whichever is readable on the color. */
export function inkOn(colour: Colour): string {
  const light = 0.299 * (colour & 255) + 0.587 * ((colour >>> 8) & 255) + 0.114 * ((colour >>> 16) & 255);
  return light > 140 ? '#111' : '#fff';
}
