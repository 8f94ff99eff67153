/** `%%scaling` in JupyterLab, on two real ranks: its table and its plot are readable in both themes. */
import { expect, picture, test, type Page } from './rankroom';
import { openRanks } from './sidebar';

interface Lab {
  jupyterapp: { commands: { execute(id: string, args: object): Promise<unknown> } };
}

const START = '%load_ext rankroom\n%cluster start --ranks 2';
const SCALING = '%%scaling 1,2 --repeat 2\nimport time\ntime.sleep(0.3 / size)';

async function open(page: Page, sources: string[]): Promise<void> {
  const cells = sources.map((source, i) => ({
    id: `cell-${i}`, cell_type: 'code', execution_count: null, metadata: {}, outputs: [], source
  }));
  const metadata = { kernelspec: { name: 'python3', display_name: 'Python 3' } };
  const notebook = JSON.stringify({ cells, metadata, nbformat: 4, nbformat_minor: 5 });
  await page.contents.uploadContent(notebook, 'text', 'scaling.ipynb');
  await page.evaluate(async () => {
    await (window as unknown as Lab).jupyterapp.commands.execute('docmanager:open', { path: 'scaling.ipynb' });
  });
  await expect(page.locator('#jp-main-statusbar')).toContainText(/\| Idle/, { timeout: 60_000 });
}

test('the %%scaling table and plot are readable, and its runs are grouped', async ({ page }) => {
  test.setTimeout(300_000);
  await open(page, [START, SCALING, '%cluster stop']);
  const output = page.locator('.jp-Notebook .jp-CodeCell').nth(1).locator('.jp-OutputArea');
  try {
    await page.notebook.runCell(0);
    await page.notebook.runCell(1);
    await expect(output.locator('table')).toBeVisible({ timeout: 120_000 });
    const plot = output.locator('.vega-embed');
    await expect(plot.locator('canvas, svg').first()).toBeVisible({ timeout: 60_000 });
    await expect(output.locator('tr')).toHaveCount(3);
    await plot.scrollIntoViewIfNeeded();
    await picture(page, 'scaling-light');
    await page.theme.setDarkTheme();
    await plot.scrollIntoViewIfNeeded();
    await picture(page, 'scaling-dark');
    // A number and its unit stay on one line; a range may take two lines.
    const lines = (): Promise<number[]> => output.locator('td').filter({ hasNotText: '–' }).evaluateAll(cells =>
      cells.map(cell => {
        const text = document.createRange();
        text.selectNodeContents(cell);
        return text.getClientRects().length;
      })
    );
    await expect.poll(lines).toEqual(Array(18).fill(1));
    await page.setViewportSize({ width: 620, height: 800 });
    await picture(page, 'scaling-narrow');
    // It is one entry in the list of runs. Without the golden records, which would come first, as
    // their ids are not dates.
    await page.route(/rankroom\/runs\?limit/, async route => {
      const all = await route.fetch({ url: route.request().url().replace(/limit=\d+/, 'limit=1000') });
      const { runs } = (await all.json()) as { runs: Array<{ id: string }> };
      await route.fulfill({ json: { runs: runs.filter(({ id }) => id.startsWith('20')) } });
    });
    const entry = (await openRanks(page)).locator('.rr-run-list > *').first();
    const summary = entry.locator('summary');
    await expect(summary).toContainText(/import time.*scaling on 1, 2 ranks · 6 runs$/);
    await expect(entry.locator('.rr-run-group')).toBeHidden();
    await summary.click();
    await expect(entry.locator('.rr-run-group .rr-run-row')).toHaveCount(6);
    await expect(entry.locator('.rr-run-group .rr-run-row').first()).toContainText(/2 of 2.*2 ranks · done/);
    await picture(page, 'scaling-sidebar');
  } finally {
    await page.notebook.runCell(2);
  }
});
