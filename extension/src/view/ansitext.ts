/** Converts text with ANSI colors to DOM nodes with JupyterLab's classes for them. */
import { colourClass, spans, type Span } from '../log/ansi';

/** Return the nodes of a text; links, scripts and markup in it stay text. */
export function ansiNodes(text: string): Node[] {
  return spans(text).map(span => {
    const classes = classesOf(span);
    const css = cssOf(span);
    if (!classes && !css) {
      return document.createTextNode(span.text);
    }
    const node = document.createElement('span');
    node.className = classes;
    node.style.cssText = css;
    node.textContent = span.text;
    return node;
  });
}

function classesOf({ style }: Span): string {
  const [fg, bg] = style.inverse ? [style.bg, style.fg] : [style.fg, style.bg];
  return [
    typeof fg === 'number' ? colourClass(fg, 'fg') : '',
    typeof bg === 'number' ? colourClass(bg, 'bg') : '',
    style.inverse && fg === undefined ? 'ansi-default-inverse-fg' : '',
    style.inverse && bg === undefined ? 'ansi-default-inverse-bg' : '',
    style.bold ? 'ansi-bold' : '',
    style.underline ? 'ansi-underline' : '',
    style.dim ? 'rr-dim' : '',
    style.italic ? 'rr-italic' : '',
    style.strike ? 'rr-strike' : ''
  ]
    .filter(name => name !== '')
    .join(' ');
}

function cssOf({ style }: Span): string {
  const [fg, bg] = style.inverse ? [style.bg, style.fg] : [style.fg, style.bg];
  const css = [];
  if (typeof fg === 'string') {
    css.push(`color:${fg}`);
  }
  if (typeof bg === 'string') {
    css.push(`background-color:${bg}`);
  }
  return css.join(';');
}
