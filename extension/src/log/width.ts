/** How many columns a text takes in a fixed-pitch font; good enough to place rows, not exact. */

const TAB = 8;
const PLAIN = /^[\x20-\x7e]*$/;
// Scripts and emoji that take two columns; combining marks take none.
const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
// eslint-disable-next-line no-misleading-character-class -- these stand for themselves, each
const NONE = /[\p{Mn}\p{Me}\u200b-\u200f\ufe00-\ufe0f]/u;

/** Columns of `text`, which holds no escape sequences. */
export function columnsOf(text: string): number {
  if (PLAIN.test(text)) {
    return text.length;
  }
  let columns = 0;
  for (const char of text) {
    if (char === '\t') {
      columns += TAB - (columns % TAB);
    } else if (char < '\u0300') {
      columns += 1;
    } else if (WIDE.test(char)) {
      columns += 2;
    } else if (!NONE.test(char)) {
      columns += 1;
    }
  }
  return columns;
}
