/** Processor time of the page's main thread by task, as other processes run beside the browser. */
import type { Page } from '../../tests/ui/rankroom';

interface TraceEvent {
  name: string;
  pid: number;
  tid: number;
  /** Microseconds of processor time. */
  tdur?: number;
  args: { name?: string };
}

/** Return the processor time (s) of each of the page's tasks while `act` runs. */
export async function tasksOf(page: Page, act: () => Promise<unknown>): Promise<number[]> {
  const context = page.context();
  const browser = context.browser()!;
  await browser.startTracing(context.pages()[0], { categories: ['toplevel'] });
  let trace;
  try {
    await act();
  } finally {
    trace = await browser.stopTracing();
  }
  const { traceEvents } = JSON.parse(trace.toString()) as { traceEvents: TraceEvent[] };
  const threadOf = ({ pid, tid }: TraceEvent): string => `${pid} ${tid}`;
  const main = new Set(traceEvents.filter(({ args }) => args.name === 'CrRendererMain').map(threadOf));
  return traceEvents
    .filter(event => event.name.endsWith('RunTask') && main.has(threadOf(event)))
    .map(({ tdur = 0 }) => tdur / 1e6);
}
