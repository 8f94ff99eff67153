/** Long work in slices, so that the browser can paint and react in between. */

/** Milliseconds a slice may take. */
export const SLICE = 8;

const channel = new MessageChannel();
const waiting: Array<() => void> = [];
channel.port1.onmessage = () => waiting.shift()?.();

/** Let the browser do what waits. A timer would wait 4 ms or more each time. */
export function breathe(): Promise<void> {
  return new Promise(resolve => {
    waiting.push(resolve);
    channel.port2.postMessage(null);
  });
}

/** Run all steps, and breathe between slices. */
export async function inSlices(steps: Iterator<void>): Promise<void> {
  while (!runSlice(steps)) {
    await breathe();
  }
}

/** Run steps for a slice; returns whether all are done. */
export function runSlice(steps: Iterator<void>, milliseconds = SLICE): boolean {
  const end = performance.now() + milliseconds;
  do {
    if (steps.next().done) {
      return true;
    }
  } while (performance.now() < end);
  return false;
}
