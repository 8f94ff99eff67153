/** The metrics of a run: plots of what ranks reported, and how to use them. */
import { readFileSync } from 'node:fs';

import type { Locator } from '@playwright/test';

import { ALWAYS, expect, LiveRecord, openRuns, picture, test, viewTest, whole, type Page } from './rankroom';

const STEPS = 400;

/** Return a loss that falls, with noise, and differently on each rank. */
function loss(rank: number, steps = STEPS, first = 0): number[] {
  return Array.from({ length: steps }, (_, i) => {
    const step = first + i;
    return (0.4 + 2.2 * Math.exp(-step / 90)) * (1 + 0.12 * Math.sin(step * (1.7 + rank)) + 0.05 * Math.cos(step * 11.3 + rank));
  });
}

/** Write a run of ranks that report a loss (`worse` times the usual one), an accuracy and a learning rate. */
function reported(id: string, ranks = 2, steps = STEPS, worse = 1): LiveRecord {
  const record = new LiveRecord(id, ranks);
  for (let rank = 0; rank < ranks; rank++) {
    const values = loss(rank, steps).map(value => worse * value);
    record.report(rank, 'train/loss', values);
    record.report(rank, 'train/accuracy', values.map((value, i) => Math.min(0.99, 1 - value / 3 + i / 4000)));
    record.report(rank, 'lr', values.map((_, i) => 0.1 * 0.985 ** i));
  }
  return record;
}

async function metrics(view: Locator): Promise<Locator> {
  await view.getByRole('tab', { name: 'Metrics' }).click();
  const tab = view.locator('.rr-metrics');
  await expect(tab).toHaveAttribute('data-ready', 'true');
  return tab;
}

async function openMetrics(page: Page, id: string): Promise<Locator> {
  const view = await openRuns(page, [id]);
  await whole(view);
  return metrics(view);
}

function plot(tab: Locator, name: string): Locator {
  return tab.locator(`.rr-mt-plot[data-name="${name}"]`);
}

async function range(tab: Locator): Promise<{ from: number; to: number }> {
  return tab.evaluate(node => ({ from: Number((node as HTMLElement).dataset.from), to: Number((node as HTMLElement).dataset.to) }));
}

/** Return where a value of the horizontal axis is on the page. */
async function place(tab: Locator, name: string, x: number): Promise<{ x: number; y: number }> {
  const area = plot(tab, name).locator('.rr-mt-area');
  await area.scrollIntoViewIfNeeded();
  const box = (await area.boundingBox())!;
  const { from, to } = await range(tab);
  return { x: box.x + ((x - from) / (to - from)) * box.width, y: box.y + box.height / 2 };
}

/** Count the pixels of a plot that have a rank's color, or nearly. */
async function pixels(tab: Locator, name: string, rank: number): Promise<number> {
  return plot(tab, name).locator('canvas').first().evaluate((node, rank) => {
    const canvas = node as HTMLCanvasElement;
    const probe = document.createElement('canvas').getContext('2d')!;
    probe.fillStyle = getComputedStyle(canvas).getPropertyValue(`--rr-c${rank}`).trim();
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
    const { data } = canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let i = 0; i < data.length; i += 4) {
      found += Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 24 ? 1 : 0;
    }
    return found;
  }, rank);
}

/** Return the requests for a run's metrics, as they are sent. */
function questions(page: Page, id: string): URL[] {
  const asked: URL[] = [];
  page.on('request', request => {
    const url = new URL(request.url());
    if (url.pathname.endsWith(`/runs/${id}/metrics`)) {
      asked.push(url);
    }
  });
  return asked;
}

viewTest('each metric has a plot with rank curves and a tooltip', ALWAYS, async ({ page }) => {
  reported('mt-plots').save('done');
  const view = await openRuns(page, ['mt-plots']);
  await whole(view);
  await expect(view.getByRole('tab')).toHaveText(['Logs', 'Metrics']);
  const tab = await metrics(view);
  await expect(tab.locator('.rr-mt-title > b')).toHaveText(['train/loss', 'train/accuracy', 'lr']);
  await expect(plot(tab, 'lr')).toHaveAttribute('aria-label', /^lr, from step 0 to step 399; last: 2\.4\d\de-4$/);
  await expect(tab.getByRole('table', { name: 'last values' }).locator('tr').first()).toHaveText(/^train\/lossrank 0: 0\.\d+rank 1: 0\.\d+$/);
  await expect.poll(() => pixels(tab, 'train/loss', 0)).toBeGreaterThan(50);
  expect(await pixels(tab, 'train/loss', 1)).toBeGreaterThan(50);
  await picture(page, 'metrics-light');

  const at = await place(tab, 'train/loss', 100);
  await page.mouse.move(at.x, at.y);
  const tip = page.locator('.rr-tl-tip');
  await expect(tip.locator('b')).toHaveText(/^train\/loss · step (99|100|101)$/);
  await expect(tip.locator('.rr-mt-tip')).toHaveText([/^rank 0: [\d.]+$/, /^rank 1: [\d.]+$/]);
  await page.theme.setDarkTheme();
  await page.mouse.move(at.x + 1, at.y);
  await expect(tip).toBeVisible();
  await picture(page, 'metrics-dark');
  await page.mouse.move(2, 2);
  await expect(tip).toBeHidden();

  await view.getByRole('button', { name: '1', exact: true }).click();
  await expect(plot(tab, 'train/loss')).toHaveAttribute('data-lines', '1');
  await expect(tab.getByRole('button', { name: 'mean' })).toBeHidden();
  await expect.poll(() => pixels(tab, 'train/loss', 0)).toBe(0);
});

viewTest('in a narrow window, plots are stacked and nothing is cut off', async ({ page }) => {
  reported('mt-narrow', 3).save('done');
  await page.setViewportSize({ width: 600, height: 860 });
  const tab = await openMetrics(page, 'mt-narrow');
  const boxes = await Promise.all(['train/loss', 'train/accuracy', 'lr'].map(async name => (await plot(tab, name).boundingBox())!));
  expect(new Set(boxes.map(({ x }) => x)).size).toBe(1);
  expect(await tab.evaluate(node => node.scrollWidth <= node.clientWidth)).toBe(true);
  await picture(page, 'metrics-narrow');
});

viewTest('plots offer a time axis, a log scale, smoothing and the mean', async ({ page }) => {
  reported('mt-choices', 4).save('done');
  const tab = await openMetrics(page, 'mt-choices');
  await tab.getByLabel('log scale').check();
  await tab.getByRole('slider', { name: 'smoothing' }).fill('0.9');
  await expect(tab.locator('.rr-mt-amount')).toHaveText('0.90');
  const at = await place(tab, 'lr', 200);
  await page.mouse.move(at.x, at.y);
  await expect(page.locator('.rr-tl-tip')).toContainText(/rank 0: .* \(smoothed .*\)/);
  await picture(page, 'metrics-smoothed');
  await page.mouse.move(2, 2);
  await tab.getByRole('button', { name: 'mean', exact: true }).click();
  await expect(plot(tab, 'train/loss')).toHaveAttribute('data-lines', '1');
  await expect(plot(tab, 'train/loss').locator('.rr-mt-last')).toHaveText(/^mean 0\.\d+$/);
  await tab.getByRole('button', { name: 'time' }).click();
  await expect(plot(tab, 'train/loss')).toHaveAttribute('aria-label', /from \+0\.000 s to \+3\.990 s/);
  await expect(tab).toHaveAttribute('data-ready', 'true');
  await picture(page, 'metrics-mean');
});

viewTest('zoom by wheel, drag or keys loads finer data and resets', ALWAYS, async ({ page }) => {
  reported('mt-zoom', 2, 20_000).save('done');
  const asked = questions(page, 'mt-zoom');
  const tab = await openMetrics(page, 'mt-zoom');
  const all = await range(tab);
  const points = async (): Promise<number> => Number(await plot(tab, 'train/loss').getAttribute('data-points'));
  await expect.poll(points).toBeGreaterThan(150);
  expect(asked.every(url => !url.searchParams.has('from'))).toBe(true);

  const middle = await place(tab, 'train/loss', 10_000);
  await page.mouse.move(middle.x, middle.y);
  await page.keyboard.down('Control');
  await page.mouse.wheel(0, -600);
  await page.keyboard.up('Control');
  await expect.poll(async () => (await range(tab)).from).toBeGreaterThan(500);
  await expect.poll(() => asked.some(url => url.searchParams.has('from'))).toBe(true);

  const [from, to] = [await place(tab, 'train/loss', 9_900), await place(tab, 'train/loss', 10_100)];
  await page.mouse.move(from.x, from.y);
  await page.mouse.down();
  await page.mouse.move(to.x + 4, to.y, { steps: 4 });
  await picture(page, 'metrics-drag');
  await page.mouse.up();
  await expect.poll(async () => { const { from, to } = await range(tab); return to - from; }).toBeLessThan(500);
  // When zoomed in enough, each bucket is a point: the curve is as it was reported.
  await expect(tab).toHaveAttribute('data-ready', 'true');
  const near = await range(tab);
  const at = await place(tab, 'train/loss', 10_000);
  await page.mouse.move(at.x, at.y);
  const step = Number((await page.locator('.rr-tl-tip b').textContent())!.replace(/^.*step |,/g, ''));
  const value = loss(0, 1, step)[0];
  await expect(page.locator('.rr-mt-tip').first()).toHaveText(`rank 0: ${Number(value.toPrecision(4))}`);
  await picture(page, 'metrics-zoomed');

  await plot(tab, 'lr').focus();
  await page.keyboard.press('d');
  await expect.poll(async () => (await range(tab)).from).toBeGreaterThan(near.from);
  await page.keyboard.press('0');
  await expect.poll(() => range(tab)).toEqual(all);
  await page.keyboard.press('Home');
  await expect(page.locator('.rr-tl-tip b')).toHaveText(/^lr · near step \d+$/);
  await page.keyboard.press('w');
  await expect.poll(() => range(tab)).not.toEqual(all);
  await tab.getByRole('button', { name: 'show all' }).click();
  await expect.poll(() => range(tab)).toEqual(all);
  await plot(tab, 'lr').locator('.rr-mt-area').dblclick();
  expect(await range(tab)).toEqual(all);
  await expect(page.locator('.jp-Notebook .jp-Cell')).toHaveCount(1);
});

viewTest('metrics and timeline share the selected time range', ALWAYS, async ({ page }) => {
  const record = reported('mt-shared');
  for (const rank of [0, 1]) {
    const define = [{ name: 'for step in range(400):' }];
    record.add('spans', rank, { t: 4_000_000, cat: 'cell', from: 0, define, name: [0], start: [0], dur: [4_000_000] });
  }
  record.save('done');
  const view = await openRuns(page, ['mt-shared']);
  await whole(view);
  const tab = await metrics(view);
  await tab.getByRole('button', { name: 'time' }).click();
  await expect(tab).toHaveAttribute('data-ready', 'true');
  await plot(tab, 'lr').focus();
  await page.keyboard.press('w');
  await page.keyboard.press('w');
  const chosen = await range(tab);
  expect(chosen.to - chosen.from).toBeLessThan(3_000_000);
  await view.getByRole('tab', { name: 'Timeline' }).click();
  const body = view.locator('.rr-tl-body');
  await expect(body).toHaveAttribute('data-ranks', '2');
  const there = await range(body);
  expect(there.from).toBeCloseTo(chosen.from, 3);
  expect(there.to).toBeCloseTo(chosen.to, 3);
  await body.focus();
  await page.keyboard.press('w');
  await expect.poll(async () => (await range(body)).from).toBeGreaterThan(there.from);
  const closer = await range(body);
  await view.getByRole('tab', { name: 'Metrics' }).click();
  await expect.poll(async () => (await range(tab)).from).toBeCloseTo(closer.from, 3);
});

viewTest('visible metrics of a live run refresh at most every second', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('mt-live');
  const asked = questions(page, 'mt-live');
  record.print(0, 'begun\n');
  const view = await openRuns(page, ['mt-live']);
  await expect(view.locator('.rr-row')).toHaveCount(1);
  await expect(view.getByRole('tablist')).toBeHidden();
  const add = (first: number): void => [0, 1].forEach(rank => record.report(rank, 'loss', loss(rank, 20, first), first));
  add(0);
  const tab = await metrics(view);
  await expect(plot(tab, 'loss')).toHaveAttribute('data-points', '20');
  const begin = Date.now();
  const before = asked.length;
  for (let first = 20; first < 160; first += 20) {
    add(first);
    await page.evaluate(() => new Promise(done => requestAnimationFrame(done)));
  }
  await expect(plot(tab, 'loss')).toHaveAttribute('data-points', '160');
  expect(asked.length - before).toBeLessThanOrEqual(1 + (Date.now() - begin) / 1000);
  // While hidden, nothing is requested.
  await view.getByRole('tab', { name: 'Logs' }).click();
  const hidden = asked.length;
  add(160);
  record.print(0, 'more\n');
  await expect(view.locator('.rr-row')).toHaveCount(2);
  expect(asked.length).toBe(hidden);
  await view.getByRole('tab', { name: 'Metrics' }).click();
  await expect(plot(tab, 'loss')).toHaveAttribute('data-points', '180');
  [0, 1].forEach(rank => record.report(rank, 'late', [1, 2, 3]));
  await expect(tab.locator('.rr-mt-title > b')).toHaveText(['loss', 'late']);
  record.save('done');
  await expect(tab).toHaveAttribute('data-ready', 'true');
});

viewTest('plots show non-finite values and steps that go back', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('mt-bad', 3);
  const values: Array<number | string> = loss(0, 100);
  record.report(0, 'loss', [...values.slice(0, 41), ...Array.from({ length: 59 }, () => 'NaN')]);
  record.report(1, 'loss', [...values.slice(0, 20), 'Infinity', ...values.slice(21, 60), '-Infinity', ...values.slice(61)]);
  record.report(0, 'restarted', loss(0, 60));
  record.report(0, 'restarted', loss(0, 60).map(value => value / 2), 30);
  record.report(2, 'only rank 2', [1e-9, 2e-9, 3e-9]);
  record.report(1, 'never a number', ['NaN', 'NaN']);
  record.report(1, 'negative', [-3, -2, -1]);
  record.report(0, 'constant', [7, 7, 7, 7]);
  record.report(0, 'once', [0.25]);
  record.save('done');
  const tab = await openMetrics(page, 'mt-bad');
  await expect(tab.locator('.rr-mt-notes')).toContainText('loss is NaN on rank 0 since step 41');
  await expect(plot(tab, 'loss').locator('.rr-mt-last')).toHaveText(/, NaN$/);
  await expect(plot(tab, 'never a number').locator('.rr-mt-none')).toHaveText('no finite value in this range');
  await expect(plot(tab, 'once').locator('.rr-mt-last')).toHaveText('0.25');
  const at = await place(tab, 'loss', 50);
  await page.mouse.move(at.x, at.y);
  await expect(page.locator('.rr-mt-tip')).toHaveText(['rank 0: NaN', /^rank 1: \d/]);
  await picture(page, 'metrics-bad');
  await page.mouse.move(2, 2);
  await tab.getByLabel('log scale').check();
  await expect(plot(tab, 'negative').locator('.rr-mt-none')).toHaveText('no value above 0 in this range');
});

viewTest('of 300 metrics 20 are shown; others can be found and added', async ({ page }) => {
  const record = new LiveRecord('mt-names');
  for (let i = 0; i < 300; i++) {
    record.report(i % 2, `layer.${i}/norm`, [1, 2, i]);
  }
  record.save('done');
  const tab = await openMetrics(page, 'mt-names');
  await expect(tab.locator('.rr-mt-count').first()).toHaveText('20 of 300 metrics');
  await expect(tab.locator('.rr-mt-plot')).toHaveCount(20);
  const find = tab.getByRole('searchbox', { name: 'show only metrics' });
  await find.fill('layer.29');
  await expect(tab.locator('.rr-mt-title > b').first()).toHaveText('layer.29/norm');
  await expect(tab.locator('.rr-mt-plot')).toHaveCount(11);
  await find.fill('/[/');
  await expect(tab.locator('.rr-complaint').filter({ hasText: 'not a valid regular expression' })).toBeVisible();
  await find.fill('nothing like it');
  await expect(tab.locator('.rr-mt-empty')).toHaveText('No metric of the ranks shown matches the filter.');
  await find.fill('');
  await tab.locator('.rr-mt-others > summary').click();
  const add = tab.getByRole('group', { name: 'metrics to add' }).getByRole('button', { name: 'layer.77/norm' });
  await add.press('Enter');
  await expect(add).toBeFocused();
  await expect(tab.locator('.rr-mt-plot')).toHaveCount(21);
  await expect(plot(tab, 'layer.77/norm')).toBeAttached();
  await picture(page, 'metrics-names');
});

viewTest('every point of the metrics shown can be downloaded', async ({ page }) => {
  reported('mt-csv', 2, 6_000).save('done');
  const tab = await openMetrics(page, 'mt-csv');
  const [download] = await Promise.all([page.waitForEvent('download'), tab.getByRole('button', { name: 'CSV' }).click()]);
  expect(download.suggestedFilename()).toBe('mt-csv.metrics.csv');
  const lines = readFileSync(await download.path(), 'utf8').trim().split('\n');
  expect(lines).toHaveLength(1 + 3 * 2 * 6_000);
  expect(lines[0]).toBe('name,rank,step,value,lowest,highest,points,run');
  expect(lines).toContain(`train/loss,1,5999,${loss(1, 1, 5_999)[0]},,,1,mt-csv`);
});

viewTest('compared runs have letters, values in the tooltip, and a legend', async ({ page }) => {
  reported('mt-base', 4, 500, 1.4).save('done', { name: 'baseline', title: 'train(lr=0.1)', has_metrics: true });
  reported('mt-wide', 1, 300, 0.7).save('done', { title: 'train(lr=0.4)' });
  reported('mt-compared').save('done', { compare: ['mt-base', 'mt-wide', 'mt-gone'] });
  const view = await openRuns(page, ['mt-compared']);
  await whole(view);
  const tab = await metrics(view);
  const legend = tab.getByRole('list', { name: 'runs that are compared' }).getByRole('listitem');
  await expect(legend).toHaveText([/^this run$/, /^Abaseline · .* · 4 ranks×$/, /^Btrain\(lr=0\.4\) · .* · 1 rank×$/, /^Cmt-gone×$/]);
  await expect(tab.locator('.rr-mt-notes')).toHaveText('not compared with C, run mt-gone: its record was not found');
  await expect(plot(tab, 'train/loss')).toHaveAttribute('data-lines', '1');
  await expect(plot(tab, 'train/loss')).toHaveAttribute('data-others', 'AB');
  await expect(plot(tab, 'train/loss').locator('.rr-mt-last')).toHaveText(/^mean 0\.\d+ · A 0\.\d+ · B 0\.\d+$/);
  expect((await range(tab)).to).toBeGreaterThan(499);
  await expect.poll(() => pixels(tab, 'train/loss', 3)).toBeGreaterThan(50);
  expect(await pixels(tab, 'train/loss', 2)).toBeGreaterThan(50);
  await picture(page, 'metrics-compared-light');
  const at = await place(tab, 'train/loss', 60);
  await page.mouse.move(at.x, at.y);
  const rows = page.locator('.rr-mt-tip');
  await expect(rows.first()).toHaveText(/^mean of ranks: [\d.]+$/);
  await expect(rows.filter({ hasText: /^A: / })).toHaveText(/^A: [\d.]+ \(this run [+−][\d.e-]+\)$/);
  await page.theme.setDarkTheme();
  await page.mouse.move(at.x + 1, at.y);
  await picture(page, 'metrics-compared-dark');
  await page.mouse.move(2, 2);

  await tab.getByRole('button', { name: 'do not compare with C' }).click();
  await expect(tab.locator('.rr-mt-notes')).toBeHidden();
  await tab.getByRole('button', { name: 'do not compare with A' }).click();
  await expect(plot(tab, 'train/loss')).toHaveAttribute('data-others', 'A');
  await page.keyboard.press('Enter');
  const add = tab.getByRole('group', { name: 'runs to compare with' }).locator('[data-run="mt-base"]');
  await add.press('Enter');
  await expect(legend).toHaveText([/^this run$/, /^Atrain/, /^Bbaseline/]);
  await tab.getByRole('button', { name: 'time' }).click();
  await tab.getByRole('button', { name: 'ranks', exact: true }).click();
  await expect(plot(tab, 'train/loss')).toHaveAttribute('data-lines', '2');
  await expect(tab).toHaveAttribute('data-ready', 'true');
  expect((await range(tab)).to).toBeGreaterThan(4_990_000);
  const [download] = await Promise.all([page.waitForEvent('download'), tab.getByRole('button', { name: 'CSV' }).click()]);
  const lines = readFileSync(await download.path(), 'utf8').trim().split('\n');
  expect(lines).toHaveLength(1 + 3 * (2 * 400 + 300 + 4 * 500));
  await page.setViewportSize({ width: 600, height: 860 });
  await expect.poll(() => tab.evaluate(node => node.scrollWidth <= node.clientWidth)).toBe(true);
  await picture(page, 'metrics-compared-narrow');
});

test('an unresponsive server is reported, and metrics are retried', async ({ page }) => {
  reported('mt-away').save('done');
  await page.route(/mt-away\/metrics/, route => route.abort());
  const view = await openRuns(page, ['mt-away']);
  await whole(view);
  await view.getByRole('tab', { name: 'Metrics' }).click();
  await expect(view.locator('.rr-mt-empty')).toHaveText(
    'The metrics cannot be shown now: the Jupyter server does not respond; retrying.'
  );
  await picture(page, 'metrics-unanswered');
  await page.unroute(/mt-away\/metrics/);
  await expect(view.locator('.rr-mt-plot')).toHaveCount(3);
  await expect(view.locator('.rr-mt-empty')).toBeHidden();
});

viewTest('64 ranks are plotted as their mean or as 64 curves', ALWAYS, async ({ page }) => {
  reported('mt-many', 64, 2_000).save('done');
  const tab = await openMetrics(page, 'mt-many');
  await expect(plot(tab, 'train/loss')).toHaveAttribute('data-lines', '1');
  await picture(page, 'metrics-64');
  await tab.getByRole('button', { name: 'ranks', exact: true }).click();
  await expect(plot(tab, 'train/loss')).toHaveAttribute('data-lines', '64');
  await picture(page, 'metrics-64-ranks');
});
