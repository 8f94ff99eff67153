/** The sidebar and a real site, with ranks on compute nodes granted by a scheduler (tests/slurm/test_sidebar.py). */
import { expect, kernelReady, picture, rows, saveRuns, test, type Page } from './rankroom';
import { card, execute, openRanks, runTyped } from './sidebar';

const SITE = process.env.RANKROOM_UI_SITE ?? '';
/** The time for a job to be granted and its ranks to start. */
const GRANTED = { timeout: 180_000 };

test.use({ kernels: null });
test.skip(SITE === '', 'there is no site to try: tests/slurm starts this with one');

async function submit(page: Page, name: string, wishes: { [label: string]: string }): Promise<void> {
  const panel = page.locator('.rr-sidebar');
  await panel.getByText('Start ranks…').click();
  const form = panel.getByRole('form', { name: 'start ranks' });
  await form.getByLabel('where').selectOption(SITE);
  await form.getByText('More').click();
  for (const [label, value] of Object.entries({ Name: name, ...wishes })) {
    await form.getByLabel(label, { exact: true }).fill(value);
  }
  await form.getByRole('button', { name: 'Submit job' }).click();
  await expect(form).toBeHidden();
}

test('a job is submitted by form, used on two nodes, and stopped', async ({ page }) => {
  test.setTimeout(480_000);
  await page.setViewportSize({ width: 1200, height: 900 });
  const panel = await openRanks(page);
  await submit(page, 'there', {});
  const there = card(panel, 'there');
  await expect(there.locator('.rr-card-words')).toHaveText('2 ranks ready', GRANTED);
  await expect(there.locator('.rr-where')).toHaveText(new RegExp(`^${SITE} · job \\d+ · 2\\snodes\\s×\\s1\\sGPU$`));
  await expect(there.locator('.rr-left')).toHaveText(/^\d min \d\d s left$/);
  await expect(there.locator('.rr-host')).toHaveText(['c1', 'c2']);
  await expect(there.getByRole('listitem').nth(1).locator('.rr-memory')).toHaveText(/^\d+\.\d MB$/, { timeout: 60_000 });
  await expect(page.locator('.rr-status-button')).toHaveText(/^2 ranks · \d min \d\d s left$/);

  // A second job finds too few free nodes, and is canceled while it waits.
  await submit(page, 'waits', { Nodes: '4' });
  const waits = card(panel, 'waits');
  await expect(waits.locator('.rr-card-words')).toContainText('is waiting in the queue (', GRANTED);
  await picture(page, 'sidebar-site');
  await waits.getByRole('button', { name: 'Cancel job…' }).click();
  await page.locator('.jp-Dialog').getByRole('button', { name: 'Cancel the job' }).click();
  await expect(waits).toBeHidden({ timeout: 60_000 });

  // An impossible job fails with the scheduler's message, and is removed.
  await submit(page, 'never', { Partition: 'nonesuch' });
  const never = card(panel, 'never');
  await expect(never).toHaveAttribute('data-state', 'failed', GRANTED);
  await expect(never.locator('.rr-card-words')).toContainText('nonesuch');
  await picture(page, 'sidebar-site-refused');
  await never.getByRole('button', { name: 'Remove' }).click();
  await expect(never).toBeHidden({ timeout: 60_000 });

  const path = await saveRuns(page, []);
  await execute(page, 'docmanager:open', { path, kernel: { name: 'python3' } });
  await kernelReady(page);
  await there.getByRole('button', { name: 'Insert cell' }).click();
  const cells = page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell');
  await expect(cells.filter({ hasText: 'attach there' })).toHaveCount(1);
  await cells.filter({ hasText: 'attach there' }).locator('.cm-content').click();
  await expect(cells.filter({ hasText: 'attach there' }).locator('.cm-content')).toBeFocused();
  await page.keyboard.press('Shift+Enter');
  await expect(cells.filter({ hasText: 'attach there' })).toContainText('there: 2 ranks on c1, c2', { timeout: 60_000 });
  await runTyped(page, cells, ['%%distributed', 'import socket; print(rank, socket.gethostname())']);
  const view = page.locator('.rr-view');
  await expect.poll(async () => (await rows(view)).sort(), { timeout: 60_000 }).toEqual(['0│0 c1', '1│1 c2']);

  await there.getByRole('button', { name: 'Log' }).click();
  await expect(page.locator('.rr-job-log')).toContainText('ready', { timeout: 60_000 });

  await there.getByRole('button', { name: 'restart rank 1, without its variables' }).click();
  await page.locator('.jp-Dialog').getByRole('button', { name: 'Restart' }).click();
  await expect(there.locator('.rr-card-words')).toHaveText('2 ranks ready', GRANTED);

  await there.getByRole('button', { name: 'Stop…' }).click();
  await page.locator('.jp-Dialog').getByRole('button', { name: 'Stop' }).click();
  await expect(panel.locator('.rr-empty')).toBeVisible({ timeout: 120_000 });
});
