/**
 * Long work in slices, so that the browser can paint and react in between.
 *
 * A worker would not do: it has no modules that JupyterLab shares, the view would wait for it with
 * each scroll, and copying a million spans to it blocks the page longer than any slice.
 */

/** Milliseconds a slice may take. */
const SLICE = 8;

/** Open only while somebody waits: an open channel keeps Node, where tests run, from ending. */
let channel: MessageChannel | null = null;
const waiting: Array<() => void> = [];

/** Let the browser do what waits. A timer would wait 4 ms or more each time. */
function breathe(): Promise<void> {
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
export async function inSlices<T>(steps: Iterator<void, T>): Promise<T> {
  for (;;) {
    const last = runSlice(steps);
    if (last.done) {
      return last.value;
    }
    await breathe();
  }
}

/** Run steps for a slice; returns the last of them, which holds the result when all are done. */
export function runSlice<T>(steps: Iterator<void, T>, milliseconds = SLICE): IteratorResult<void, T> {
  const end = performance.now() + milliseconds;
  let step = steps.next();
  while (!step.done && performance.now() < end) {
    step = steps.next();
  }
  return step;
}
