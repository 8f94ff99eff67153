/** JupyterHub: a learner logs in and works on the ranks of a job (tests/slurm/test_hub.py). */
import { expect, test } from '@playwright/test';

const HUB = process.env.RANKROOM_UI_HUB ?? '';
const USER = process.env.RANKROOM_UI_USER ?? '';
/** The time for a job to be granted, and for JupyterLab to start in it. */
const GRANTED = { timeout: 240_000 };

test.skip(HUB === '', 'there is no hub: tests/slurm starts this with one');

test('a learner logs in to JupyterHub and runs a cell on two ranks', async ({ page }) => {
  await page.goto(`${HUB}/hub/login`);
  await page.getByLabel('Username').fill(USER);
  await page.getByLabel('Password').fill(process.env.RANKROOM_UI_PASSWORD ?? '');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.waitForURL(new RegExp(`/user/${USER}/lab`), GRANTED);
  await expect(page.locator('#jupyterlab-splash')).toBeHidden();

  // The lesson is open already. Wait for the kernel, as cells that run before it has started are lost.
  await expect(page.locator('#jp-main-statusbar').getByText('| Idle')).toBeVisible(GRANTED);
  const cells = page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell');
  const begins = cells.filter({ hasText: '%course 1' }).first();
  await begins.locator('.cm-content').click();
  await page.keyboard.press('Shift+Enter');
  await expect(begins).toContainText('everything it needs is available', GRANTED);
  const first = cells.filter({ hasText: 'I am rank' }).first();
  await first.locator('.cm-content').click();
  await page.keyboard.press('Shift+Enter');
  const view = first.locator('.rr-view');
  for (const rank of [0, 1]) {
    await expect(view).toContainText(`I am rank ${rank} of 2`, GRANTED);
  }
  await page.screenshot({ path: test.info().outputPath('hub.png') });
});
