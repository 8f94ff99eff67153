/** Helpers that create and update DOM nodes. */

type Child = Node | string | null;
type Attributes = { [name: string]: string | boolean | ((event: never) => void) };

/** Create a node with classes, attributes, `on…` listeners and children; null children are left out. */
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

/** Make these the children of a node. Those that stay are not touched, so text selected in them stays selected. */
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

/** Set a node's text only if it differs, so that text selected in it stays selected. */
export function setText(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Merges any number of requests to paint into one animation frame. */
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

/** Before a control vanishes: if it has the focus, give it to another, or a keyboard would go on at the top of the page. */
export function handOn(from: HTMLElement, to: () => void): void {
  if (from.contains(document.activeElement)) {
    to();
  }
}

/** Focus an element that cannot be reached by Tab or by a click. */
export function focusOn(node: HTMLElement): void {
  node.tabIndex = -1;
  node.addEventListener('blur', () => node.removeAttribute('tabindex'), { once: true });
  node.focus();
}
