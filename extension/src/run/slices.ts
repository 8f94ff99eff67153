/**
 * Long work in slices, so that the browser can paint and react in between.
 *
 * A web worker would not help: it cannot use the modules that JupyterLab shares, the view would wait for
 * it at each scroll, and copying a million spans to it blocks the page longer than any slice.
 */

/** Milliseconds a slice may take. */
const SLICE = 8;

/** Open only while something waits: an open channel keeps Node, which runs the tests, from exiting. */
let channel: MessageChannel | null = null;
const waiting: Array<() => void> = [];

/** Let the browser process what is pending. A timer would take at least 4 ms each time. */
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

/** Run all steps, letting the browser work between slices; return the result. */
export async function inSlices<T>(steps: Iterator<void, T>): Promise<T> {
  for (;;) {
    const last = runSlice(steps);
    if (last.done) {
      return last.value;
    }
    await breathe();
  }
}

/** Run steps for one slice; return the last one, which holds the result if all are done. */
export function runSlice<T>(steps: Iterator<void, T>, milliseconds = SLICE): IteratorResult<void, T> {
  const end = performance.now() + milliseconds;
  let step = steps.next();
  while (!step.done && performance.now() < end) {
    step = steps.next();
  }
  return step;
}
