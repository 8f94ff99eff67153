/** A run as a page of its own, as `rankroom runs show --html` writes it, opened from disk without a server. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';

import { expect, test, type Page } from '@playwright/test';

import { ALWAYS, LiveRecord } from './rankroom';

const HOME = join(process.env.RANKROOM_UI_HOME ?? '', 'home');
const PYTHON = process.env.RANKROOM_PYTHON ?? join(__dirname, '..', '..', '.venv', 'bin', 'python');

/** Write and open the page of a run; return all errors in the browser, and all requests to a network. */
async function open(page: Page, run: string): Promise<string[]> {
  const file = test.info().outputPath(`${run}.html`);
  execFileSync(PYTHON, ['-m', 'rankroom', 'runs', 'show', run, '--html', '-o', file], {
    env: { ...process.env, RANKROOM_HOME: HOME }
  });
  const complaints: string[] = [];
  page.on('console', message => message.type() === 'error' && complaints.push(message.text()));
  page.on('pageerror', error => complaints.push(error.message));
  page.on('request', request => /^https?:/.test(request.url()) && complaints.push(request.url()));
  await page.goto(`file://${file}`);
  await expect(page.locator('.rr-view')).toHaveAttribute('data-complete', 'true');
  return complaints;
}

async function picture(page: Page, name: string): Promise<void> {
  await page.screenshot({ path: join(__dirname, 'test-results', 'pictures', `${name}.png`) });
}

test('the page of a run shows its timeline and profile', ALWAYS, async ({ page }) => {
  const complaints = await open(page, 'trace-slow_loader');
  await expect(page.locator('.rr-words')).toContainText('slowest: rank 2');
  await page.getByRole('tab', { name: 'Timeline' }).click();
  await expect(page.locator('.rr-timeline canvas').first()).toBeVisible();
  await picture(page, 'page-light');
  await page.getByRole('tab', { name: 'Profile' }).click();
  await expect(page.locator('.rr-diagnosis')).toContainText('rank 2 arrives last');
  await page.emulateMedia({ colorScheme: 'dark' });
  await expect(page.locator('body')).toHaveAttribute('data-jp-theme-light', 'false');
  await picture(page, 'page-dark');
  expect(complaints).toEqual([]);
});

test('metrics are zoomed and compared without a server', async ({ page }) => {
  const values = Array.from({ length: 2_000 }, (_, i) => 2 / (1 + i / 100));
  const other = new LiveRecord('page-other', 1);
  other.report(0, 'loss', values.map(value => value + 2));
  other.save('done', { name: 'baseline' });
  const record = new LiveRecord('page-metrics');
  [0, 1].forEach(rank => record.report(rank, 'loss', values.map(value => value + rank)));
  record.save('done', { compare: ['page-other'] });
  const complaints = await open(page, 'page-metrics');
  await page.getByRole('tab', { name: 'Metrics' }).click();
  const tab = page.locator('.rr-metrics');
  await expect(tab).toHaveAttribute('data-ready', 'true');
  const plot = tab.locator('.rr-mt-plot');
  await expect(plot).toHaveAttribute('aria-label', /^loss, from step 0 to step 1,999; last: .* · A 2\.\d+$/);
  await expect(tab.getByRole('listitem').nth(1)).toHaveText(/^Abaseline · .* · 1 rank×$/);
  await plot.focus();
  await page.keyboard.press('w');
  await expect.poll(async () => Number(await tab.getAttribute('data-from'))).toBeGreaterThan(100);
  await expect(tab).toHaveAttribute('data-ready', 'true');
  await picture(page, 'page-metrics');
  expect(complaints).toEqual([]);
});

test('a narrow page shows a failure with its colored traceback', async ({ page }) => {
  await page.setViewportSize({ width: 600, height: 800 });
  const complaints = await open(page, 'failure');
  await expect(page.locator('h1')).toHaveText(/.+/);
  await expect(page.locator('.rr-cause')).toHaveText('rank 1 · ValueError: bad batch on rank 1 · cell line 5');
  await expect(page.locator('.rr-traceback .ansi-red-fg').first()).toHaveCSS('color', 'rgb(196, 55, 44)');
  await page.getByText('the cell', { exact: true }).click();
  await expect(page.locator('header pre')).toBeVisible();
  await picture(page, 'page-narrow');
  expect(complaints).toEqual([]);
});

test('images are shown, and output of ranks neither runs nor loads anything', async ({ page }) => {
  const complaints = await open(page, 'figure');
  await expect(page.locator('.rr-display img').first()).toBeVisible();
  expect(await page.locator('.rr-display img').first().evaluate(img => (img as HTMLImageElement).naturalWidth)).toBeGreaterThan(1);
  await open(page, 'trace-hostile');
  expect(await page.evaluate(() => (window as unknown as { hacked?: boolean }).hacked)).toBeUndefined();
  expect(complaints).toEqual([]);
});

test('log and timeline are saved from the page', async ({ page }) => {
  await open(page, 'failure');
  const log = page.waitForEvent('download');
  await page.getByText('whole log').click();
  const saved = await log;
  expect(saved.suggestedFilename()).toBe('failure.log');
  expect(readFileSync(await saved.path(), 'utf8')).toMatch(/^\d │ /);

  await open(page, 'trace-slow_loader');
  await page.getByRole('tab', { name: 'Timeline' }).click();
  const trace = page.waitForEvent('download');
  await page.getByRole('link', { name: /Perfetto/ }).click();
  const kept = gunzipSync(readFileSync(await (await trace).path()));
  expect((JSON.parse(kept.toString()) as { traceEvents: unknown[] }).traceEvents.length).toBeGreaterThan(100);
});
