/** A run with a million spans or more: how soon it is painted, frames of panning, memory. */
import { expect, test, type Page } from '../../tests/ui/rankroom';
import { openTimeline, type Opened } from './opened';
import { ASKED, framesOf, percentile95, report, tabMemory, watchFrames } from './page';

const STEPS = 240;

interface Lab {
  jupyterapp: { commands: { execute(id: string, args: object): Promise<unknown> } };
}

/**
 * Zoom and pan, one step per frame, as with a mouse and held keys; `whileReading`, only until all
 * spans are read. Return how long painting took in each frame.
 */
async function move(page: Page, whileReading = false): Promise<number[]> {
  return page.evaluate(async ({ steps, whileReading }) => {
    const body = document.querySelector<HTMLElement>('.rr-tl-body')!;
    const { left, top, width } = body.getBoundingClientRect();
    body.focus();
    const work: number[] = [];
    for (let step = 0; step < steps && !(whileReading && body.dataset.exact === 'true'); step++) {
      const turn = step % 80;
      const at = { clientX: left + width * (0.3 + 0.5 * ((step * 0.618) % 1)), clientY: top + 40, bubbles: true, cancelable: true };
      if (turn < 30) {
        body.dispatchEvent(new WheelEvent('wheel', { ...at, deltaY: -80, ctrlKey: true }));
      } else if (turn < 50) {
        body.dispatchEvent(new KeyboardEvent('keydown', { key: turn < 40 ? 'd' : 'a', bubbles: true, cancelable: true }));
      } else {
        body.dispatchEvent(new WheelEvent('wheel', { ...at, deltaY: 80, ctrlKey: true }));
      }
      // The view paints in the next frame before this callback, which was requested later.
      await new Promise<void>(done =>
        requestAnimationFrame(now => {
          work.push((performance.now() - now) / 1000);
          done();
        })
      );
    }
    return work;
  }, { steps: STEPS, whileReading });
}

/** Close all tabs, and wait: the page soon forgets a run that no view shows. */
async function closeAll(page: Page): Promise<void> {
  await page.evaluate(() => (window as unknown as Lab).jupyterapp.commands.execute('application:close-all', {}));
  await expect(page.locator('.rr-view')).toHaveCount(0);
  await page.evaluate(() => new Promise(done => setTimeout(done, 1000)));
}

/** Return the frames of zooming and panning, from the first picture until all spans are read. */
async function readingFrames(page: Page): Promise<number[]> {
  await closeAll(page);
  const opened = openTimeline(page, ASKED.run);
  await page.locator('.rr-tl-body[data-matched="true"]').waitFor();
  await watchFrames(page);
  await move(page, true);
  const frames = await framesOf(page);
  await opened;
  return frames;
}

test('timeline', async ({ page }) => {
  const samples: Opened[] = [];
  const memory: number[] = [];
  await expect(page.locator('#jupyterlab-splash')).toHaveCount(0);
  for (let i = 0; i < ASKED.pairs; i++) {
    // The first sample is of a page that has not shown a run before.
    await closeAll(page);
    const before = await tabMemory(page);
    samples.push(await openTimeline(page, ASKED.run));
    memory.push((await tabMemory(page)) - before);
  }
  report('first', 'ours', samples.map(({ first }) => first));
  report('exact', 'ours', samples.map(({ exact }) => exact));
  if (ASKED.ranks > 8) {
    report('reading', 'ours', [percentile95(await readingFrames(page))]);
  }
  const frames: number[] = [];
  const work: number[] = [];
  for (const isOpen of [false, true]) {
    if (isOpen && ASKED.ranks <= 8) {
      await page.getByRole('button', { name: 'open or close all ranks' }).click();
    }
    await move(page);
    await watchFrames(page);
    work.push(...(await move(page)));
    frames.push(...(await framesOf(page)));
  }
  report('frames', 'ours', [percentile95(frames)]);
  report('longest', 'ours', [Math.max(...frames)]);
  report('work', 'ours', [percentile95(work)]);
  report('memory', 'ours', memory);
});
