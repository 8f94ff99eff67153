/** How soon the console of a workshop shows what learners do (tests/slurm/workshop_trial.py). */
import type { Response } from '@playwright/test';

import { expect, test } from './rankroom';
import { execute, labReady } from './sidebar';

const FOLDER = process.env.RANKROOM_UI_WORKSHOP ?? '';
/** The maximum duration of a workshop. */
const OVER = { timeout: 3_000_000 };

interface Overview {
  is_over: boolean;
  tiles: { shared: { user: string; state: string; run: object | null } }[];
}

test.use({ kernels: null });
test.skip(FOLDER === '', 'there is no workshop: tests/slurm starts this with one');

test('the console shows all learners until the workshop is over', async ({ page }) => {
  test.setTimeout(OVER.timeout + 300_000);
  let latest: Overview | null = null;

  /** Print the server's answer, and when it was painted. */
  async function shown(response: Response): Promise<void> {
    const overview = (await response.json()) as Overview;
    const now = await page.evaluate(
      () => new Promise<number>(done => requestAnimationFrame(() => requestAnimationFrame(() => done(Date.now()))))
    );
    const tiles = overview.tiles.map(({ shared: { user, state, run } }) => ({ user, status: { state, run } }));
    console.log(JSON.stringify({ now: now / 1000, tiles }));
    latest = overview;
  }

  await page.setViewportSize({ width: 1400, height: 900 });
  await labReady(page);
  page.on('response', response => {
    if (new URL(response.url()).pathname === '/rankroom/workshop' && response.ok()) {
      shown(response).catch((error: Error) => console.log(`the console: ${error.message}`));
    }
  });
  await execute(page, 'rankroom:workshop-console', { folder: FOLDER });
  await page.locator('.rr-workshop[data-known=true]').waitFor();
  await expect.poll(() => latest?.is_over, OVER).toBe(true);
  await expect(page.locator('.rr-ws-tile')).toHaveCount(latest!.tiles.length);
  await page.screenshot({ path: test.info().outputPath('room.png') });
});
