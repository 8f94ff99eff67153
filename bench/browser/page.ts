/** Helpers of the browser's benchmarks: results, frames, and the memory of a tab. */
import { appendFileSync, readFileSync } from 'node:fs';

import { expect, type Page } from '../../tests/ui/rankroom';

/** The parameters from bench/browser.py. */
export const ASKED = {
  out: process.env.RANKROOM_BENCH_OUT ?? '',
  run: process.env.RANKROOM_BENCH_RUN ?? '',
  lines: Number(process.env.RANKROOM_BENCH_LINES),
  ranks: Number(process.env.RANKROOM_BENCH_RANKS),
  spans: Number(process.env.RANKROOM_BENCH_SPANS),
  pairs: Number(process.env.RANKROOM_BENCH_PAIRS)
};

/** Report samples to bench/browser.py, in seconds or bytes. */
export function report(what: string, side: 'ours' | 'peers', samples: number[]): void {
  appendFileSync(ASKED.out, `${JSON.stringify({ what, side, samples })}\n`);
}

export interface CellFile {
  source: string;
  outputs?: unknown[];
}

interface Lab {
  jupyterapp: { commands: { execute(id: string, args: object): Promise<unknown> } };
}

/** Open a new notebook with these cells, and wait for its kernel. */
export async function openNotebook(page: Page, name: string, cells: CellFile[]): Promise<void> {
  const notebook = {
    cells: cells.map((cell, i) => ({
      id: `cell-${i}`, cell_type: 'code', execution_count: null, metadata: {}, outputs: [], ...cell
    })),
    metadata: { kernelspec: { name: 'python3', display_name: 'Python 3' } }, nbformat: 4, nbformat_minor: 5
  };
  await page.contents.uploadContent(JSON.stringify(notebook), 'text', name);
  await page.evaluate(async path => {
    await (window as unknown as Lab).jupyterapp.commands.execute('docmanager:open', { path });
  }, name);
  await expect(page.locator('#jp-main-statusbar')).toContainText(/\| Idle/);
}

interface Watched {
  frames?: number[];
}

/** Record the duration of each frame until `framesOf` is called. */
export async function watchFrames(page: Page): Promise<void> {
  await page.evaluate(() => {
    const watched = window as unknown as Watched;
    const frames: number[] = [];
    watched.frames = frames;
    let last = -1;
    const tick = (now: number): void => {
      if (last >= 0) {
        frames.push((now - last) / 1000);
      }
      last = now;
      if (watched.frames === frames) {
        requestAnimationFrame(tick);
      }
    };
    requestAnimationFrame(tick);
  });
}

/** Return the durations of the frames since `watchFrames`, in seconds. */
export async function framesOf(page: Page): Promise<number[]> {
  return page.evaluate(() => {
    const watched = window as unknown as Watched;
    const frames = watched.frames ?? [];
    delete watched.frames;
    return frames;
  });
}

/** Return the 95th percentile of frame durations. */
export function percentile95(frames: number[]): number {
  if (frames.length < 20) {
    throw new Error(`only ${frames.length} frames: that is no scrolling`);
  }
  return [...frames].sort((a, b) => a - b)[Math.floor(frames.length * 0.95)];
}

/** Return the private bytes of the browser's renderers after a garbage collection. */
export async function tabMemory(page: Page): Promise<number> {
  // Galata's page is a wrapper, which `newCDPSession` does not accept.
  const session = await page.context().newCDPSession(page.context().pages()[0]);
  for (let i = 0; i < 3; i++) {
    await session.send('HeapProfiler.collectGarbage');
  }
  await session.detach();
  const browser = await page.context().browser()!.newBrowserCDPSession();
  const { processInfo } = await browser.send('SystemInfo.getProcessInfo');
  await browser.detach();
  const own = processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => uniqueBytes(id));
  return own.reduce((sum, bytes) => sum + bytes, 0);
}

function uniqueBytes(pid: number): number {
  const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  return [...text.matchAll(/^Private_(?:Clean|Dirty):\s+(\d+) kB/gm)].reduce(
    (sum, [, kilobytes]) => sum + 1024 * Number(kilobytes),
    0
  );
}
