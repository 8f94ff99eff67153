/**
 * Keys that a view handles while it has the focus. The notebook's command mode intercepts arrows, Enter
 * and letters for everything inside it; a view under a cell needs some of them itself, and an element
 * with `data-rr-keys` those listed there. All other shortcuts (save, run cell, …) work as usual.
 */

const SUPPRESS = 'data-lm-suppress-shortcuts';
const OURS = new Set(['ArrowUp', 'ArrowDown', 'ArrowLeft', 'ArrowRight', 'PageUp', 'PageDown', 'Home', 'End', 'Enter', ' ']);

/**
 * Keep these keys from the application's shortcuts while the focus is inside `node`; return how to stop that.
 *
 * Most shortcuts of a notebook match the focused element, before any element around it is considered,
 * so the focused element itself has to suppress them.
 */
export function keepKeys(node: HTMLElement): () => void {
  // Called before the application's own listener, which is on the document.
  const listen = (event: KeyboardEvent): void => {
    const { target } = event;
    if (!(target instanceof HTMLElement)) {
      return;
    }
    // Some browsers report no `focusout` if the element that has the focus is removed.
    if (!node.contains(target)) {
      leave();
      return;
    }
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    const isOurs = OURS.has(event.key) && !(event.key === 'Enter' && event.shiftKey);
    const own = target.closest<HTMLElement>('[data-rr-keys]');
    const isOwn = own?.dataset.rrKeys?.split(' ').includes(event.key);
    const isField = target instanceof HTMLInputElement || target instanceof HTMLSelectElement;
    const isTyping = isField && event.key !== 'Escape';
    target.toggleAttribute(SUPPRESS, isPlain && (isOurs || Boolean(isOwn) || isTyping));
  };
  const enter = (): void => window.addEventListener('keydown', listen, true);
  const leave = (): void => window.removeEventListener('keydown', listen, true);
  node.addEventListener('focusin', enter);
  node.addEventListener('focusout', leave);
  return leave;
}
