/** A run of 400,000 lines in a notebook: frames while it opens and scrolls, and memory. */
import type { Locator } from '@playwright/test';

import { expect, openRuns, readRun, rows, test, whole, type Page } from '../../tests/ui/rankroom';
import { ASKED, framesOf, openNotebook, percentile95, report, tabMemory, watchFrames } from './page';

const STEPS = 150;

/** Turn the wheel up and down over a node. */
async function wheel(page: Page, node: Locator): Promise<void> {
  await node.hover();
  for (let step = 0; step < STEPS; step++) {
    await page.mouse.wheel(0, step % 50 < 30 ? -400 : 400);
    await page.waitForTimeout(10);
  }
}

/** Scroll a node from end to end several times, one step per frame. */
async function drag(node: Locator): Promise<void> {
  await node.evaluate(async (box, steps) => {
    for (let step = 0; step < steps; step++) {
      box.scrollTop = (0.5 + 0.5 * Math.cos(step / 9)) * (box.scrollHeight - box.clientHeight);
      await new Promise(requestAnimationFrame);
    }
  }, STEPS);
}

/** Expect that scrolling to each end shows the log's first and last lines. */
async function sweep(view: Locator, box: Locator): Promise<void> {
  for (const [share, line] of [[0, 0], [1, ASKED.lines - 1]]) {
    await box.evaluate((node, share) => {
      node.scrollTop = share * (node.scrollHeight - node.clientHeight);
    }, share);
    await expect.poll(async () => (await rows(view)).some(row => row.endsWith(` line ${line}`))).toBe(true);
  }
}

test('ours', async ({ page }) => {
  const small = await openRuns(page, [{ ...readRun(ASKED.run), id: 'plain' }]);
  await expect(small.first()).toBeVisible();
  const before = await tabMemory(page);
  await watchFrames(page);
  const view = (await openRuns(page, [ASKED.run])).first();
  await whole(view);
  const opening = await framesOf(page);
  await expect(view.locator('.rr-words')).toContainText(`${(2 * ASKED.lines).toLocaleString('en-US')} lines`);
  const box = view.locator('.rr-list');
  await box.click();
  await sweep(view, box);
  const scrolling: number[] = [];
  for (const act of [() => wheel(page, box), () => drag(box)]) {
    await watchFrames(page);
    await act();
    scrolling.push(...(await framesOf(page)));
  }
  report('scrolling', 'ours', [percentile95(scrolling)]);
  report('longest', 'ours', [Math.max(...scrolling)]);
  report('opening', 'ours', [Math.max(...opening)]);
  report('memory', 'ours', [(await tabMemory(page)) - before]);
});

test('peer', async ({ page }) => {
  // The output that %%px leaves in a notebook for the same lines.
  const outputs = [0, 1].map(rank => {
    const lines = Array.from({ length: ASKED.lines }, (_, i) => `rank ${rank} line ${i}\n`).join('');
    return { output_type: 'display_data', metadata: {}, data: { 'text/plain': `[stdout:${rank}] ${lines}` } };
  });
  await openNotebook(page, 'small.ipynb', [{ source: '%%px' }]);
  const before = await tabMemory(page);
  await watchFrames(page);
  await openNotebook(page, 'flood.ipynb', [{ source: '%%px', outputs }]);
  const area = page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output').first();
  await expect(area).toContainText(`rank 0 line ${ASKED.lines - 1}`);
  const opening = await framesOf(page);
  const box = page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer').first();
  await watchFrames(page);
  await wheel(page, box);
  await drag(box);
  const scrolling = await framesOf(page);
  report('scrolling', 'peers', [percentile95(scrolling)]);
  report('longest', 'peers', [Math.max(...scrolling)]);
  report('opening', 'peers', [Math.max(...opening)]);
  report('memory', 'peers', [(await tabMemory(page)) - before]);
});
