/** What a notebook is called that makes room for a fresh one. */

/** `a/03 (before reset 14.05).ipynb`, and for those after the first of that minute `…, 2).ipynb`. */
export function keptPath(path: string, when: Date, attempt: number): string {
  const two = (n: number): string => String(n).padStart(2, '0');
  const time = `${two(when.getHours())}.${two(when.getMinutes())}`;
  const again = attempt > 1 ? `, ${attempt}` : '';
  return `${path.replace(/\.ipynb$/, '')} (before reset ${time}${again}).ipynb`;
}

/** The cell that catches up; it can be read before it runs, and stays in the notebook. */
export function catchUpSource(lesson: number, exercise: string): string {
  return `%load_ext rankroom\n%course ${lesson} --catch-up${exercise ? ` ${exercise}` : ''}`;
}
