/** Metrics of 64 ranks: the cost of a frame while plots of their mean, or of all, are panned. */
import type { Locator } from '@playwright/test';

import { expect, LiveRecord, openRuns, test, whole, type Page } from '../../tests/ui/rankroom';
import { report } from './page';
import { tasksOf } from './tasks';

const RANKS = 64;
const STEPS = 2_000;
const FRAMES = 60;

test('64 ranks', async ({ page }) => {
  const record = new LiveRecord('panned', RANKS);
  for (let rank = 0; rank < RANKS; rank++) {
    const values = Array.from({ length: STEPS }, (_, i) => (1 + Math.exp(-i / 90)) * (1 + 0.1 * Math.sin(i * (1.7 + rank))));
    ['train/loss', 'train/accuracy', 'lr'].forEach((name, i) => record.report(rank, name, values.map(value => value * (i + 1))));
  }
  record.save('done');
  const view = await openRuns(page, ['panned']);
  await whole(view);
  await view.getByRole('tab', { name: 'Metrics' }).click();
  const tab = view.locator('.rr-metrics');
  await expect(tab).toHaveAttribute('data-ready', 'true');
  const plot = tab.locator('.rr-mt-plot[data-name="train/loss"]');
  await expect(plot).toHaveAttribute('data-lines', '1');
  report('their mean', 'ours', [await frameCost(page, tab, plot)]);
  await tab.getByRole('button', { name: 'ranks', exact: true }).click();
  await expect(plot).toHaveAttribute('data-lines', String(RANKS));
  report('all of them', 'ours', [await frameCost(page, tab, plot)]);
});

/** Return the seconds of processor time per frame. */
async function frameCost(page: Page, tab: Locator, plot: Locator): Promise<number> {
  await plot.focus();
  await page.keyboard.press('w');
  await expect(tab).toHaveAttribute('data-ready', 'true');
  const tasks = await tasksOf(page, () =>
    page.evaluate(async frames => {
      const node = document.activeElement!;
      for (let i = 0; i < frames; i++) {
        node.dispatchEvent(new KeyboardEvent('keydown', { key: i % 2 ? 'a' : 'd', bubbles: true }));
        await new Promise(done => requestAnimationFrame(done));
      }
    }, FRAMES)
  );
  expect(tasks.length).toBeGreaterThan(FRAMES / 2);
  return tasks.reduce((sum, each) => sum + each, 0) / FRAMES;
}
