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

/** Make these the children of a node; those that stay are not touched, nor is what is selected in them. */
export function setChildren(parent: HTMLElement, children: readonly HTMLElement[]): void {
  const wanted = new Set<Element>(children);
  [...parent.children].filter(child => !wanted.has(child)).forEach(child => child.remove());
  let at = parent.firstElementChild;
  for (const child of children) {
    if (child === at) {
      at = at.nextElementSibling;
    } else {
      parent.insertBefore(child, at);
    }
  }
}

/** Set a text only when it differs: what is selected in it stays so. */
export function setText(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
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
