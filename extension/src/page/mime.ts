/** Rich outputs of ranks in a standalone page: pictures, text, and HTML that runs no scripts. */
import { Widget } from '@lumino/widgets';

import { ansiNodes } from '../view/ansitext';
import { h } from '../view/dom';

type Draw = (data: unknown) => Node;
const HIGHEST = 600;
const PLAIN = 'text/plain';
/** The default repr of an object, which says nothing. */
const OBJECT = /^<[\w.]+ object( at 0x[0-9a-f]+)?>$/;

/** In order of preference. */
const DRAW = new Map<string, Draw>([
  ['image/svg+xml', data => picture(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(text(data))}`)],
  ...['image/png', 'image/jpeg', 'image/gif', 'image/webp'].map((type): [string, Draw] => [
    type,
    data => picture(`data:${type};base64,${text(data).replace(/\s/g, '')}`)
  ]),
  ['text/html', data => framed(text(data))],
  ['text/markdown', data => h('pre', '', {}, text(data))],
  [PLAIN, data => h('pre', '', {}, ...ansiNodes(text(data)))],
  ['text/latex', data => h('pre', '', {}, text(data))],
  ['application/json', data => h('pre', '', {}, JSON.stringify(data, null, 2))]
]);

/** The part of JupyterLab's rendermime registry that the view uses. */
export const registry = {
  preferredMimeType(data: { [type: string]: unknown }): string | undefined {
    const types = [...DRAW.keys()].filter(type => type in data);
    return types.find(type => type !== PLAIN || !OBJECT.test(text(data[PLAIN]))) ?? types[0];
  },

  createRenderer(type: string): Widget & { renderModel(model: { data: { [type: string]: unknown } }): Promise<void> } {
    const renderModel = async (model: { data: { [type: string]: unknown } }): Promise<void> => {
      const draw = DRAW.get(type);
      if (draw) {
        widget.node.replaceChildren(draw(model.data[type]));
      }
    };
    const widget = Object.assign(new Widget(), { renderModel });
    return widget;
  }
};

function text(data: unknown): string {
  return Array.isArray(data) ? data.join('') : String(data);
}

function picture(src: string): Node {
  return h('img', 'rr-page-picture', { src, alt: '' });
}

/** Show HTML in a frame. Its sandbox and the page's content security policy prevent scripts and loading. */
function framed(html: string): Node {
  const frame = h('iframe', 'rr-page-frame', { sandbox: 'allow-same-origin', srcdoc: html });
  frame.addEventListener('load', () => {
    const { scrollHeight = HIGHEST } = frame.contentDocument?.documentElement ?? {};
    frame.style.height = `${Math.min(HIGHEST, scrollHeight)}px`;
  });
  return frame;
}
