/** DOM nodes in one expression. */

type Child = Node | string | null;
type Attributes = { [name: string]: string | boolean | ((event: never) => void) };

/** A node with classes, attributes, `on…` listeners and children; null children are left out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className: string,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (className) {
    node.className = className;
  }
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') {
      node.addEventListener(name.slice(2), value as (event: Event) => void);
    } else if (value !== false) {
      node.setAttribute(name, value === true ? '' : value);
    }
  }
  node.append(...children.filter((child): child is Node | string => child !== null));
  return node;
}

/** A frame to paint in, asked for any number of times. */
export class Frame {
  private handle = 0;

  constructor(private paint: () => void) {}

  request(): void {
    this.handle ||= requestAnimationFrame(() => {
      this.handle = 0;
      this.paint();
    });
  }

  cancel(): void {
    cancelAnimationFrame(this.handle);
    this.handle = 0;
  }
}
