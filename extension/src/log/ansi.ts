/** ANSI colors: split a line's text into spans of one style each, and remove all other escape sequences. */

export interface Style {
  /** 0–15: a color of the theme; otherwise a CSS color. */
  fg?: number | string;
  bg?: number | string;
  bold?: boolean;
  dim?: boolean;
  italic?: boolean;
  underline?: boolean;
  strike?: boolean;
  inverse?: boolean;
}

export interface Span {
  text: string;
  style: Style;
}

// CSI sequences; OSC, DCS and the like up to their end; two-character escapes; a lone ESC.
const ESCAPE =
  // eslint-disable-next-line no-control-regex
  /\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?/g;
// eslint-disable-next-line no-control-regex
const SGR = /\x1b\[([0-9;:]*)m/y;
// Control characters except the tab, and those that change the direction of text or hide it.
// eslint-disable-next-line no-control-regex
const ODD = /[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** `text` without escape sequences; control characters become visible signs. */
export function plain(text: string): string {
  return visible(text.includes('\x1b') ? text.replace(ESCAPE, '') : text);
}

/** Control characters as visible signs: NUL as ␀. */
export function visible(text: string): string {
  return text.replace(ODD, sign);
}

function sign(char: string): string {
  const code = char.charCodeAt(0);
  if (code < 0x20) {
    return String.fromCharCode(0x2400 + code);
  }
  return code === 0x7f ? '␡' : '\ufffd';
}

/** The spans of one line or of several; spans without text are left out. */
export function spans(text: string): Span[] {
  const out: Span[] = [];
  let style: Style = {};
  let from = 0;
  const push = (to: number): void => {
    const piece = visible(text.slice(from, to));
    if (piece) {
      out.push({ text: piece, style });
    }
  };
  ESCAPE.lastIndex = 0;
  for (let match = ESCAPE.exec(text); match; match = ESCAPE.exec(text)) {
    push(match.index);
    from = ESCAPE.lastIndex;
    SGR.lastIndex = match.index;
    const sgr = SGR.exec(text);
    if (sgr) {
      style = apply(style, sgr[1]);
    }
  }
  push(text.length);
  return out;
}

/** The escape sequence that sets the style in force at the end of `text`; '' if it is the default. */
export function carried(text: string): string {
  if (!text.includes('\x1b[')) {
    return '';
  }
  let style: Style = {};
  // eslint-disable-next-line no-control-regex
  for (const match of text.matchAll(/\x1b\[([0-9;:]*)m/g)) {
    style = apply(style, match[1]);
  }
  return toSgr(style);
}

const ON: { [code: number]: Style } = {
  1: { bold: true },
  2: { dim: true },
  3: { italic: true },
  4: { underline: true },
  7: { inverse: true },
  9: { strike: true },
  21: { underline: true }
};
const OFF: { [code: number]: ReadonlyArray<keyof Style> } = {
  22: ['bold', 'dim'],
  23: ['italic'],
  24: ['underline'],
  27: ['inverse'],
  29: ['strike'],
  39: ['fg'],
  49: ['bg']
};

function apply(before: Style, codes: string): Style {
  let style = { ...before };
  const numbers = codes.split(';').flatMap(numbersOf);
  for (let i = 0; i < numbers.length; i++) {
    const n = numbers[i];
    if (n === 0) {
      style = {};
    } else if (n in ON) {
      style = { ...style, ...ON[n] };
    } else if (n in OFF) {
      OFF[n].forEach(key => delete style[key]);
    } else if (n === 38 || n === 48) {
      const [colour, used] = extended(numbers.slice(i + 1));
      i += used;
      if (colour !== undefined) {
        style[n === 38 ? 'fg' : 'bg'] = colour;
      }
    } else if ((n >= 30 && n < 38) || (n >= 90 && n < 98)) {
      style.fg = n < 90 ? n - 30 : n - 82;
    } else if ((n >= 40 && n < 48) || (n >= 100 && n < 108)) {
      style.bg = n < 100 ? n - 40 : n - 92;
    }
  }
  return style;
}

/** Return a code with colons as numbers without: the color space and the kind of an underline are left out. */
function numbersOf(code: string): number[] {
  const [first, ...more] = code.split(':').map(part => Number(part) || 0);
  if (more.length && (first === 38 || first === 48)) {
    return [first, more[0], ...more.slice(more[0] === 2 ? -3 : -1)];
  }
  return [first === 4 && more[0] === 0 ? 24 : first];
}

/** Return a color of 256 or of 16 million, undefined if invalid, and how many numbers encode it. */
function extended(numbers: number[]): [number | string | undefined, number] {
  if (numbers[0] === 2) {
    const [red, green, blue] = numbers.slice(1, 4).map(n => Math.min(n, 255));
    return [blue === undefined ? undefined : `rgb(${red}, ${green}, ${blue})`, 4];
  }
  if (numbers[0] !== 5 || numbers[1] === undefined || numbers[1] > 255) {
    return [undefined, numbers[0] === 5 ? 2 : 1];
  }
  const n = numbers[1];
  if (n < 16) {
    return [n, 2];
  }
  if (n >= 232) {
    const grey = 8 + 10 * (n - 232);
    return [`rgb(${grey}, ${grey}, ${grey})`, 2];
  }
  const levels = [0, 95, 135, 175, 215, 255];
  const cube = n - 16;
  const [red, green, blue] = [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6];
  return [`rgb(${levels[red]}, ${levels[green]}, ${levels[blue]})`, 2];
}

function toSgr(style: Style): string {
  const codes = Object.entries(ON)
    .filter(([code, on]) => code !== '21' && Object.keys(on).some(key => style[key as keyof Style]))
    .map(([code]) => code);
  for (const [colour, base] of [[style.fg, 30], [style.bg, 40]] as const) {
    if (typeof colour === 'number') {
      codes.push(String(base + (colour < 8 ? colour : colour + 52)));
    } else if (colour !== undefined) {
      codes.push(`${base + 8};2;${colour.match(/\d+/g)?.join(';')}`);
    }
  }
  return codes.length ? `\x1b[${codes.join(';')}m` : '';
}

const NAMES = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

/** JupyterLab's class for a theme color, such as `ansi-red-fg` or `ansi-red-intense-bg`. */
export function colourClass(colour: number, where: 'fg' | 'bg'): string {
  return `ansi-${NAMES[colour % 8]}${colour < 8 ? '' : '-intense'}-${where}`;
}
