/** The timeline of a run: what is painted, and what can be done with it. */
import type { Locator } from '@playwright/test';

import { expect, openRuns, picture, test, whole, type Page } from './rankroom';

/** Show the timeline of a view, and wait until it is painted. */
async function timeline(view: Locator): Promise<Locator> {
  await view.getByRole('tab', { name: 'Timeline' }).click();
  const body = view.locator('.rr-tl-body');
  await expect(body).toHaveAttribute('data-matched', 'true');
  return body;
}

test('first look', async ({ page }) => {
  for (const name of ['straggler', 'slow_loader', 'hostile', 'nested', 'imported', 'many_names', 'clocks']) {
    const view = await openRuns(page, [`trace-${name}`]);
    await whole(view);
    await timeline(view);
    await picture(page as Page, `timeline-${name}`);
  }
});
