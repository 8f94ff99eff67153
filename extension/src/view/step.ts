/** Buttons for the steps that a reader can take in a run. */
import { h } from './dom';

/** Create a button that does nothing while its step is under way, but keeps the focus. */
export function stepButton(label: string, title: string, take: () => unknown): HTMLButtonElement {
  const button = h('button', 'rr-button rr-step', {
    title,
    onclick: () => button.getAttribute('aria-disabled') !== 'true' && void take()
  }, label);
  return button;
}

export function setUnderWay(button: HTMLElement, isUnderWay: boolean): void {
  button.setAttribute('aria-disabled', String(isUnderWay));
}
