import { expect, test } from '@jupyterlab/galata';

/** Real ranks behind a real notebook: what a user types, and what is on the screen then. */

test('a cell runs on two ranks and its log is under it', async ({ page }) => {
  await page.notebook.createNew();
  await page.notebook.setCell(0, 'code', '%load_ext rankroom\n%cluster start --ranks 2');
  await page.notebook.addCell('code', "%%distributed\nprint('hello from', rank)\nrank * 10");
  await page.notebook.addCell('code', '%cluster stop');
  await page.notebook.runCell(0);
  await page.notebook.runCell(1);
  const output = page.locator('.jp-Notebook .jp-Cell').nth(1).locator('.jp-Cell-outputArea');
  await expect(output).toContainText('2 ranks');
  await expect(output).toContainText('hello from 0');
  await expect(output).toContainText('hello from 1');
  await page.screenshot({ path: 'test-results/ranks.png' });
  await page.notebook.runCell(2);
});
