/** What the browser's benchmarks have in common: results, frames, and the memory of a tab. */
import { appendFileSync, readFileSync } from 'node:fs';

import { expect, type Page } from '../../tests/ui/rankroom';

/** What bench/browser.py tells. */
export const ASKED = {
  out: process.env.RANKROOM_BENCH_OUT ?? '',
  run: process.env.RANKROOM_BENCH_RUN ?? '',
  lines: Number(process.env.RANKROOM_BENCH_LINES),
  ranks: Number(process.env.RANKROOM_BENCH_RANKS),
  spans: Number(process.env.RANKROOM_BENCH_SPANS),
  pairs: Number(process.env.RANKROOM_BENCH_PAIRS)
};

/** Hand samples to bench/browser.py: seconds or bytes. */
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

/** Note the length of every frame until `framesOf` asks for them. */
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

/** The frames since `watchFrames`, in seconds. */
export async function framesOf(page: Page): Promise<number[]> {
  return page.evaluate(() => {
    const watched = window as unknown as Watched;
    const frames = watched.frames ?? [];
    delete watched.frames;
    return frames;
  });
}

/** The frame that 95 % of all frames are shorter than. */
export function percentile95(frames: number[]): number {
  if (frames.length < 20) {
    throw new Error(`only ${frames.length} frames: that is no scrolling`);
  }
  return [...frames].sort((a, b) => a - b)[Math.floor(frames.length * 0.95)];
}

/** Bytes that belong to the browser's renderers alone, after a collection of garbage. */
export async function tabMemory(page: Page): Promise<number> {
  // Galata's page is a wrapper, which the protocol does not take.
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
