/** Long work in slices, so that the browser can paint and react in between. */

/** Milliseconds a slice may take. */
export const SLICE = 8;

/** Open only while somebody waits: an open channel keeps Node, where tests run, from ending. */
let channel: MessageChannel | null = null;
const waiting: Array<() => void> = [];

/** Let the browser do what waits. A timer would wait 4 ms or more each time. */
export function breathe(): Promise<void> {
  if (!channel) {
    channel = new MessageChannel();
    channel.port1.onmessage = () => {
      waiting.shift()?.();
      if (waiting.length === 0) {
        channel?.port1.close();
        channel = null;
      }
    };
  }
  const { port2 } = channel;
  return new Promise(resolve => {
    waiting.push(resolve);
    port2.postMessage(null);
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
