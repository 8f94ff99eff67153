/** The text typed into the filter box, as a test of a line's text. */
import { trans } from '../translation';

/** Return a test for the typed text, null if all lines match, or a sentence on what is wrong with it. */
export function textFilter(typed: string): ((text: string) => boolean) | null | string {
  if (typed === '') {
    return null;
  }
  const expression = /^\/(.+)\/(i?)$/.exec(typed);
  if (!expression) {
    const pattern = new RegExp(typed.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&'), 'i');
    return text => pattern.test(text);
  }
  try {
    const pattern = new RegExp(expression[1], expression[2]);
    return text => pattern.test(text);
  } catch (error) {
    return trans.__('%1 is not a valid regular expression: %2', typed, error instanceof Error ? error.message : error);
  }
}
