/** The timeline of a run: what is painted, and how to use it. */
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

import type { Locator } from '@playwright/test';

import { ALWAYS, expect, LiveRecord, openRuns, picture, readRun, still, viewTest, whole, type Page } from './rankroom';

/** Show the timeline of a view, and wait until it is painted with its waits and transfers. */
async function timeline(view: Locator): Promise<Locator> {
  await view.getByRole('tab', { name: 'Timeline' }).click();
  const body = view.locator('.rr-tl-body');
  await expect(body).toHaveAttribute('data-matched', 'true');
  return body;
}

async function range(body: Locator): Promise<{ from: number; to: number }> {
  return body.evaluate(node => ({ from: Number(node.dataset.from), to: Number(node.dataset.to) }));
}

/** Return where a moment is in the `nth` lane with this name, once the page no longer moves. */
async function place(body: Locator, lane: string, nth: number, t: number): Promise<{ x: number; y: number }> {
  const name = body.locator('.rr-tl-name', { hasText: lane }).nth(nth);
  await name.scrollIntoViewIfNeeded();
  return still(body.page(), async () => {
    const box = (await name.boundingBox())!;
    const canvas = (await body.locator('.rr-tl-canvas').boundingBox())!;
    const { from, to } = await range(body);
    return { x: canvas.x + ((t - from) / (to - from)) * canvas.width, y: box.y + 7 };
  });
}

/** Return the share of the timeline's pixels that are not background. */
async function painted(body: Locator): Promise<number> {
  return body.locator('.rr-tl-canvas').evaluate(node => {
    const canvas = node as HTMLCanvasElement;
    const { data } = canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height);
    const all = new Uint32Array(data.buffer);
    // The last row is below all lanes.
    const background = all[all.length - 1];
    return all.reduce((sum, pixel) => sum + (pixel === background ? 0 : 1), 0) / all.length;
  });
}

/** Return the page's errors, as they occur. */
function complaints(page: Page): string[] {
  const found: string[] = [];
  page.on('pageerror', error => found.push(String(error)));
  page.on('console', message => {
    if (message.type() === 'error' && /rankroom|Uncaught|TypeError|RangeError|ReferenceError/.test(message.text())) {
      found.push(message.text());
    }
  });
  return found;
}

/** Write a run of two ranks with spans, output and samples: rank 1 comes 30 ms late to each allreduce. */
function trained(id: string): LiveRecord {
  const record = new LiveRecord(id);
  for (const rank of [0, 1]) {
    const define = [
      { name: 'for step in range(10):', line: 3 },
      { name: 'allreduce grad.0', op: 'allreduce', tensor: 'grad.0', library: 'hvd.torch', bytes: 4096, dtype: 'float32', shape: [1024] },
      { name: 'hvd.allreduce grad.0' },
      { name: 'GLOO_ALLREDUCE', tensor: 'grad.0' },
      { name: 'augment' }
    ];
    const late = 30_000 * rank;
    const spans = (cat: string, name: number, start: number[], dur: number): void =>
      record.add('spans', rank, {
        t: 1_000_000, cat, from: 0, define, name: start.map(() => name),
        start: start.map((t, i) => t - (start[i - 1] ?? 0)), dur: start.map(() => dur)
      });
    const steps = Array.from({ length: 10 }, (_, i) => 100_000 * i);
    spans('cell', 0, [0], 1_000_000);
    spans('user', 4, steps, 40_000 + late);
    spans('wait', 2, steps.map(t => t + 40_000 + late), 50_000 - late);
    spans('collective', 1, steps.map(t => t + 40_000 + late), 50_000 - late);
    spans('phase', 3, steps.map(t => t + 72_000), 15_000);
    for (let i = 0; i < 20; i++) {
      record.add('sample', rank, { t: 50_000 * i, cpu: 60 + 40 * (i % 3), memory: 1e9 + 1e7 * i });
    }
    for (const [i, t] of steps.entries()) {
      record.add('log', rank, { t: t + 90_000, stream: 'stdout', text: `step ${i} of rank ${rank}\n` });
    }
  }
  record.save('done');
  return record;
}

viewTest('the log tab is first, and the selected tab is restored', ALWAYS, async ({ page }) => {
  trained('tl-tabs');
  const view = await openRuns(page, ['tl-tabs']);
  await whole(view);
  await expect(view.getByRole('tab')).toHaveText(['Logs', 'Timeline', 'Profile']);
  await expect(view.getByRole('tab', { name: 'Logs' })).toHaveAttribute('aria-selected', 'true');
  await expect(view.getByRole('log')).toBeVisible();
  await view.getByRole('tab', { name: 'Logs' }).focus();
  await page.keyboard.press('ArrowRight');
  await expect(view.getByRole('tab', { name: 'Timeline' })).toBeFocused();
  await expect(view.getByRole('log')).toBeHidden();
  await expect(view.getByRole('tabpanel', { name: 'Timeline' })).toBeVisible();
  const body = view.locator('.rr-tl-body');
  await expect(body).toHaveAttribute('aria-label', /^Timeline of ranks 0–1: 82 spans over 1.00 s. steps 2–10: rank 1 arrives last in 100 % of 9 allreduces and costs 30 % of a step/);
  const again = await openRuns(page, ['tl-tabs']);
  await expect(again.locator('.rr-tl-body')).toHaveAttribute('data-spans', '82');
  const without = await openRuns(page, ['ok']);
  await whole(without);
  await expect(without.getByRole('tablist')).toBeHidden();
});

viewTest('Ctrl+wheel, keys and minimap zoom and pan the timeline', ALWAYS, async ({ page }) => {
  trained('tl-zoom');
  const view = (await openRuns(page, ['tl-zoom', 'ok', 'colours'])).first();
  await whole(view);
  const body = await timeline(view);
  const all = await range(body);
  const span = async (): Promise<number> => {
    const { from, to } = await range(body);
    return to - from;
  };
  const middle = await place(body, 'rank 0', 0, 500_000);
  await page.mouse.move(middle.x, middle.y);
  await page.keyboard.down('Control');
  await page.mouse.wheel(0, -400);
  await page.keyboard.up('Control');
  await expect.poll(span).toBeLessThan(0.9 * (all.to - all.from));
  const near = await range(body);
  expect((near.from + near.to) / 2).toBeGreaterThan(400_000);
  expect((near.from + near.to) / 2).toBeLessThan(600_000);

  // A plain wheel moves the notebook.
  const scroller = page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer');
  // Repeatedly: the notebook is high enough to scroll only when the other runs are shown.
  await expect
    .poll(async () => {
      await page.mouse.wheel(0, 200);
      return scroller.evaluate(node => node.scrollTop);
    })
    .toBeGreaterThan(50);
  expect(await range(body)).toEqual(near);
  await scroller.evaluate(node => (node.scrollTop = 0));

  // Without the focus, keys go to the notebook; with it, they go to the timeline, and no cell is added.
  const cells = page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell');
  const count = await cells.count();
  await body.focus();
  await page.keyboard.press('w');
  await expect.poll(span).toBeLessThan(near.to - near.from);
  const before = await range(body);
  await page.keyboard.press('d');
  await expect.poll(async () => (await range(body)).from).toBeGreaterThan(before.from);
  await page.keyboard.press('a');
  await page.keyboard.press('s');
  await page.keyboard.press('f');
  await expect.poll(() => range(body)).toEqual(all);
  expect(await cells.count()).toBe(count);

  await page.keyboard.press('w');
  await page.keyboard.press('w');
  await page.keyboard.press('w');
  const map = view.locator('.rr-tl-minimap');
  await map.click({ position: { x: (await map.boundingBox())!.width * 0.9, y: 10 } });
  await expect.poll(async () => (await range(body)).to).toBeGreaterThan(900_000);
  await map.dblclick();
  await expect.poll(() => range(body)).toEqual(all);
});

/** Whether the minimap has the color that the legend shows for this label. */
async function isInMinimap(view: Locator, label: string): Promise<boolean> {
  const swatch = view.locator('.rr-tl-legend > *').filter({ hasText: label }).locator('.rr-tl-swatch');
  const colour = await swatch.evaluate(node => getComputedStyle(node).backgroundColor.match(/\d+/g)!.slice(0, 3).map(Number));
  return view.locator('.rr-tl-minimap').evaluate((node, [r, g, b]) => {
    const { width, height } = node as HTMLCanvasElement;
    const { data } = (node as HTMLCanvasElement).getContext('2d')!.getImageData(0, 0, width, height);
    return Array.from({ length: width * height }, (_, i) => 4 * i).some(i => data[i] === r && data[i + 1] === g && data[i + 2] === b);
  }, colour);
}

viewTest('a finished run opens at its loop; F shows the whole run', ALWAYS, async ({ page }) => {
  const view = await openRuns(page, ['trace-imports']);
  await whole(view);
  const body = await timeline(view);
  // Ten seconds of imports, then 40 steps of 26 ms.
  await expect.poll(async () => (await range(body)).from).toBeGreaterThan(10_000_000);
  const first = await range(body);
  expect(first.to - first.from).toBeGreaterThan(100_000);
  expect(first.to - first.from).toBeLessThan(160_000);
  const note = view.locator('.rr-tl-note');
  await expect(note).toHaveText('showing the first steps of the loop; press F to show everything');
  await picture(page, 'timeline-loop-light');
  await page.theme.setDarkTheme();
  await picture(page, 'timeline-loop-dark');
  // Choosing ranks does not change that.
  await view.getByRole('button', { name: '2', exact: true }).click();
  await expect(body.locator('.rr-tl-name.rr-tl-rank')).toHaveCount(1);
  expect(await range(body)).toEqual(first);
  await body.focus();
  await page.keyboard.press('f');
  await expect.poll(async () => (await range(body)).from).toBeLessThanOrEqual(0);
  const all = await range(body);
  expect(all.to).toBeGreaterThan(11_000_000);
  await expect(note).toBeHidden();
  await page.setViewportSize({ width: 620, height: 800 });
  await view.getByRole('tab', { name: 'Logs' }).click();
  await view.getByRole('tab', { name: 'Timeline' }).click();
  await expect(body).toBeVisible();
  expect(await range(body), 'one goes on looking where one looked').toEqual(all);
  await picture(page, 'timeline-loop-narrow');
});

viewTest('a live run is followed, and the whole run stays shown at its end', async ({ page }) => {
  const record = new LiveRecord('tl-live-loop');
  const step = (n: number): void => {
    const define = [{ name: 'SGD.step' }];
    for (const rank of [0, 1]) {
      record.add('spans', rank, { t: 50_000 * n, cat: 'step', from: 0, define, name: [0], start: [50_000 * n + 40_000], dur: [5_000] });
    }
  };
  [0, 1].forEach(rank => record.add('status', rank, { state: 'running', t: 0 }));
  Array.from({ length: 30 }, (_, n) => step(n));
  const view = await openRuns(page, ['tl-live-loop']);
  await view.getByRole('tab', { name: 'Timeline' }).click();
  const body = view.locator('.rr-tl-body');
  await expect(body).toHaveAttribute('data-spans', '60');
  step(30);
  await expect(body).toHaveAttribute('data-spans', '62');
  expect((await range(body)).to).toBeGreaterThan(1_545_000);
  [0, 1].forEach(rank => record.add('status', rank, { state: 'ok', t: 1_560_000 }));
  record.save('done', { end: Number(readRun('tl-live-loop').start) + 1_560_000 });
  await whole(view);
  await view.getByRole('tab', { name: 'Profile' }).click();
  await expect(view.locator('.rr-facts')).toContainText('20 steps/s');
  await view.getByRole('tab', { name: 'Timeline' }).click();
  await expect(body).toBeVisible();
  expect((await range(body)).from).toBeLessThanOrEqual(0);
  expect((await range(body)).to).toBeGreaterThan(1_545_000);
});

viewTest('clicking a collective shows each rank’s arrival and delay', ALWAYS, async ({ page }) => {
  trained('tl-late');
  const view = await openRuns(page, ['tl-late']);
  await whole(view);
  const body = await timeline(view);
  await expect.poll(() => isInMinimap(view, 'waiting for others')).toBe(true);
  const at = await place(body, 'collective', 0, 355_000);
  await page.mouse.move(at.x, at.y);
  const tip = page.locator('.rr-tl-tip');
  await expect(tip).toContainText('allreduce grad.0');
  await expect(tip).toContainText('waited: 30.0 ms for rank 1');
  await expect(tip).toContainText('bytes: 4.1 kB');
  await expect(tip).toContainText('shape: 1024');
  await page.mouse.click(at.x, at.y);
  const details = view.locator('.rr-tl-details');
  await expect(details.locator('.rr-tl-who')).toHaveText(
    'allreduce grad.0 #3: Rank 1 arrived last: 30.0 ms after rank 0, the first. The ranks waited 30.0 ms in total; the transfer then took 20.0 ms.'
  );
  await expect(details.locator('tbody tr')).toHaveText([/rank 0\s*first\s*30\.0 ms\s*20\.0 ms/, /rank 1\s*\+30\.0 ms\s*0 µs\s*20\.0 ms\s*← last/]);
  await picture(page, 'timeline-collective-light');
  await details.getByRole('button', { name: 'rank 1' }).press('Enter');
  await expect(details.locator('.rr-tl-facts')).toContainText('rank1');
  // The button is gone: the keyboard goes on in the timeline.
  await expect(body).toBeFocused();
  await page.theme.setDarkTheme();
  await picture(page, 'timeline-collective-dark');
  await details.getByRole('button', { name: 'zoom to it' }).click();
  await expect.poll(async () => (await range(body)).from).toBeGreaterThan(360_000);
  await page.keyboard.press('Escape');
});

viewTest('dragging selects a time range and shows its totals', async ({ page }) => {
  trained('tl-part');
  const view = await openRuns(page, ['tl-part']);
  await whole(view);
  const body = await timeline(view);
  const [from, to] = [await place(body, 'rank 0', 0, 200_000), await place(body, 'rank 0', 0, 400_000)];
  await page.mouse.move(from.x, from.y);
  await page.mouse.down();
  await page.mouse.move((from.x + to.x) / 2, from.y, { steps: 5 });
  await page.mouse.move(to.x, to.y, { steps: 5 });
  await page.mouse.up();
  const details = view.locator('.rr-tl-details');
  await expect(details.locator('.rr-tl-head b')).toHaveText(/^\+0\.(199|200|201) s to \+0\.(399|400|401) s: 20[01]|19[89]/);
  const row = details.locator('tbody tr', { hasText: 'collective' });
  await expect(row.locator('td').first()).toHaveText('4');
  await expect(row).toContainText(/140 ms|1[34]\d ms/);
  await picture(page, 'timeline-part');
  await body.focus();
  await page.keyboard.press('f');
  await expect.poll(async () => (await range(body)).from).toBeGreaterThan(190_000);
  await page.keyboard.press('Escape');
  await expect(details).toBeHidden();
});

viewTest('search counts matches, and keys step from span to span', async ({ page }) => {
  trained('tl-find');
  const view = await openRuns(page, ['tl-find']);
  await whole(view);
  const body = await timeline(view);
  const find = view.getByPlaceholder('find spans');
  await find.fill('augment');
  await expect(view.locator('.rr-tl-found')).toHaveText('20 matches');
  // Only in the ranks that are shown.
  const chip = view.getByRole('button', { name: '1', exact: true });
  await chip.click();
  await expect(view.locator('.rr-tl-found')).toHaveText('10 matches');
  await chip.click();
  await expect(view.locator('.rr-tl-found')).toHaveText('20 matches');
  await find.press('Enter');
  const facts = view.locator('.rr-tl-facts');
  await expect(facts).toContainText('begins+0.000 s');
  await find.press('Enter');
  await find.press('Enter');
  await expect(facts).toContainText('begins+0.100 s');
  await picture(page, 'timeline-search');
  await find.press('Shift+Enter');
  await expect(facts).toContainText('begins+0.000 s');
  await find.fill('nothing like it');
  await expect(view.locator('.rr-tl-found')).toHaveText('no match');
  await find.press('Escape');
  await expect(body).toBeFocused();
  await page.keyboard.press('.');
  await expect(facts).toContainText('begins+0.100 s');
  await page.keyboard.press(',');
  await expect(facts).toContainText('begins+0.000 s');
  await page.keyboard.press('ArrowDown');
  await expect(facts).not.toContainText('categoryuser');
  await page.keyboard.press('/');
  await expect(find).toBeFocused();
});

viewTest('a log line leads to its moment in the timeline, and back', ALWAYS, async ({ page }) => {
  trained('tl-log');
  const view = await openRuns(page, ['tl-log']);
  await whole(view);
  const line = view.locator('.rr-row', { hasText: 'step 5 of rank 1' });
  await line.hover();
  const button = line.getByRole('button', { name: 'show this moment in the timeline' });
  const [there, text] = [(await button.boundingBox())!, (await line.locator('.rr-text').boundingBox())!];
  expect(there.x + there.width, 'covers nothing of the line').toBeLessThan(text.x + 1);
  await button.click();
  const body = view.locator('.rr-tl-body');
  await expect(body).toBeFocused();
  await expect(body).toHaveAttribute('data-moment', '590000');
  await page.keyboard.press('l');
  await expect(view.locator('.rr-marked')).toContainText('step 5 of rank');
  await view.getByRole('log').press('t');
  await expect(body).toHaveAttribute('data-moment', '590000');
});

viewTest('lanes open for categories, tensors and utilization', async ({ page }) => {
  trained('tl-lanes');
  const view = await openRuns(page, ['tl-lanes']);
  await whole(view);
  const body = await timeline(view);
  await expect(body.locator('.rr-tl-cat').filter({ hasText: 'phase' })).toHaveCount(2);
  await body.getByRole('button', { name: 'phase' }).first().click();
  await expect(body.locator('.rr-tl-tensor')).toHaveText(['grad.0']);
  await expect(body.locator('.rr-tl-meter')).toHaveText(['cpu', 'memory', 'cpu', 'memory']);
  await picture(page, 'timeline-lanes');
  await body.getByRole('button', { name: 'rank 1' }).click();
  await expect(body.getByRole('button', { name: 'rank 1' })).toHaveAttribute('aria-expanded', 'false');
  await expect(body.locator('.rr-tl-meter')).toHaveCount(2);
  await view.getByLabel('utilisation').check();
  await expect(body.locator('.rr-tl-meter')).toHaveCount(4);
  await view.getByRole('button', { name: '0', exact: true }).click();
  await expect(body.locator('.rr-tl-name.rr-tl-rank')).toHaveText(['▾rank 0']);
});

for (const name of ['hostile', 'nan', 'jumping', 'overlap', 'nested', 'many_names', 'imported', 'groups', 'one_rank']) {
  viewTest(`${name}: valid spans are painted without errors`, async ({ page }) => {
    const found = complaints(page);
    const view = await openRuns(page, [`trace-${name}`]);
    await whole(view);
    const body = await timeline(view);
    expect(await painted(body)).toBeGreaterThan(0.0005);
    await body.focus();
    for (const key of ['w', 'w', 'd', 'ArrowRight', 'ArrowDown', '.', ',', 's', 'f', 'f', 'Escape']) {
      await page.keyboard.press(key);
    }
    const box = (await body.locator('.rr-tl-canvas').boundingBox())!;
    for (let i = 1; i < 8; i++) {
      await page.mouse.move(box.x + (box.width * i) / 8, box.y + (Math.min(box.height, 500) * i) / 8);
      await page.mouse.click(box.x + (box.width * i) / 8, box.y + (Math.min(box.height, 500) * i) / 8);
    }
    await view.getByRole('button', { name: 'open or close all ranks' }).click();
    await expect(body).toBeVisible();
    if (name === 'hostile') {
      await expect(view.locator('.rr-tl-note')).toContainText('25 spans dropped: ');
      await expect(view.locator('.rr-tl-note')).toContainText('1 × a negative duration');
    }
    await picture(page, `timeline-${name}`);
    expect(found).toEqual([]);
  });
}

viewTest('the timeline can be downloaded, for Perfetto', async ({ page }) => {
  trained('tl-download');
  const view = await openRuns(page, ['tl-download']);
  await whole(view);
  await timeline(view);
  const coming = page.waitForEvent('download');
  await view.getByRole('link', { name: 'download the timeline' }).click();
  const download = await coming;
  expect(download.suggestedFilename()).toBe('tl-download.trace.json.gz');
  const trace = JSON.parse(gunzipSync(readFileSync(await download.path())).toString()) as {
    traceEvents: Array<{ ph: string; pid: number; name: string; cat?: string }>;
  };
  const of = (ph: string): typeof trace.traceEvents => trace.traceEvents.filter(event => event.ph === ph);
  expect(of('X')).toHaveLength(82);
  expect(new Set(of('C').map(({ name }) => name))).toEqual(new Set(['CPU', 'memory']));
  // Rank 1 is late each time.
  expect(of('i').map(({ pid, name }) => [pid, name])).toEqual(Array(10).fill([1, 'rank 1 last in allreduce grad.0']));
  await expect(page.locator('.jp-NotebookPanel:not(.lm-mod-hidden)')).toBeVisible();
});

viewTest('a record without a valid span says so', async ({ page }) => {
  const record = new LiveRecord('tl-unsound');
  record.add('spans', 0, { cat: 'op', name: [0], start: [10], dur: [-5] });
  record.save('done');
  const view = await openRuns(page, ['tl-unsound']);
  await whole(view);
  await view.getByRole('tab', { name: 'Timeline' }).click();
  await expect(view.locator('.rr-tl-empty')).toHaveText('This run has no spans to show.');
  await expect(view.locator('.rr-tl-note')).toHaveText('1 span dropped: 1 × a negative duration');
});

viewTest('a live run grows without moving a zoomed range', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('tl-live');
  const add = (t: number): void =>
    record.add('spans', 0, { t, cat: 'user', from: 0, define: [{ name: 'work' }], name: [0], start: [t], dur: [1000] });
  add(1000);
  const view = await openRuns(page, ['tl-live']);
  await view.getByRole('tab', { name: 'Timeline' }).click();
  const body = view.locator('.rr-tl-body');
  await expect(body).toHaveAttribute('data-spans', '1');
  add(50_000);
  await expect(body).toHaveAttribute('data-spans', '2');
  const all = await range(body);
  expect(all.to).toBeGreaterThan(50_000);
  await body.focus();
  await page.keyboard.press('w');
  // The zoom takes effect in the next frame.
  await expect.poll(() => range(body)).not.toEqual(all);
  const near = await range(body);
  add(90_000);
  await expect(body).toHaveAttribute('data-spans', '3');
  expect(await range(body)).toEqual(near);
  record.save('done');
  await whole(view);
});

viewTest('64 ranks are drawn in wide and narrow windows, light and dark', async ({ page }) => {
  const record = new LiveRecord('tl-many', 64);
  for (let rank = 0; rank < 64; rank++) {
    const define = [{ name: 'allreduce x', op: 'allreduce', tensor: 'x', library: 'dist' }, { name: 'work' }];
    const start = Array.from({ length: 50 }, (_, i) => (i ? 20_000 : 300 * ((rank * 7) % 64)));
    record.add('spans', rank, { cat: 'user', from: 0, define, name: start.map(() => 1), start: start.map((t, i) => (i ? t : 0)), dur: start.map(() => 300 * ((rank * 7) % 64)) });
    record.add('spans', rank, { cat: 'collective', name: start.map(() => 0), start, dur: start.map(() => 19_500 - 300 * ((rank * 7) % 64)) });
  }
  record.save('done', { end: Number(readRun('tl-many').start) + 1_000_000 });
  const view = await openRuns(page, ['tl-many']);
  await whole(view);
  const body = await timeline(view);
  await expect(body).toHaveAttribute('data-ranks', '64');
  await body.focus();
  await page.keyboard.press('f');
  for (let i = 0; i < 8; i++) {
    await page.keyboard.press('w');
  }
  await picture(page, 'timeline-64-light');
  await page.theme.setDarkTheme();
  await picture(page, 'timeline-64-dark');
  await page.setViewportSize({ width: 620, height: 800 });
  await expect(view.locator('.rr-timeline')).toHaveClass(/rr-tl-narrow/);
  await picture(page, 'timeline-64-narrow');
  const wide = await view.locator('.rr-tl-canvas').boundingBox();
  expect(wide!.width).toBeGreaterThan(150);
});

viewTest('an overview of a long run is shown until all spans are read', async ({ page }) => {
  const record = new LiveRecord('tl-long');
  const [each, events] = [5_000, 120];
  for (let i = 0; i < events; i++) {
    const first = i < 2 ? { from: 0, define: [{ name: 'work' }] } : {};
    const begin = Math.floor(i / 2) * each * 100;
    const starts = Array.from({ length: each }, (_, j) => (j ? 100 : begin));
    record.add('spans', i % 2, { cat: 'user', ...first, name: starts.map(() => 0), start: starts, dur: starts.map(() => 80) });
  }
  const all = each * events;
  const define = [{ name: 'work' }];
  const [blocks, long] = [Array.from({ length: 100 }, (_, i) => i), (all * 100) / 2 / 100];
  record.addOverview(all, [0, 1].map(rank => ({
    rank, cat: 'user', from: 0, define, name: blocks.map(() => 0), start: blocks.map(i => (i ? long : 0)),
    dur: blocks.map(() => long), busy: blocks.map(() => 0.8 * long)
  })));
  record.save('done', { end: Number(readRun('tl-long').start) + 30_000_000 });
  // Hold back everything after the first piece.
  let release = (): void => undefined;
  const released = new Promise<void>(done => (release = done));
  await page.route(/runs\/tl-long\/events\?after=[1-9]/, async route => {
    await released;
    await route.continue();
  });
  const view = await openRuns(page, ['tl-long']);
  await view.getByRole('tab', { name: 'Timeline' }).click();
  const body = view.locator('.rr-tl-body');
  await expect(body).toHaveAttribute('data-spans', String(all));
  await expect(body).toHaveAttribute('data-exact', 'false');
  await expect(view.locator('.rr-tl-note')).toHaveText(/^showing an overview until all spans are read · \d % read$/);
  expect(await painted(body)).toBeGreaterThan(0.01);
  await picture(page, 'timeline-overview');
  await page.theme.setDarkTheme();
  await picture(page, 'timeline-overview-dark');
  await body.focus();
  const whole = await range(body);
  await page.keyboard.press('w');
  await expect.poll(async () => (await range(body)).to).toBeLessThan(whole.to);
  const near = await range(body);
  release();
  await expect(body).toHaveAttribute('data-exact', 'true');
  await expect(body).toHaveAttribute('data-spans', String(all));
  await expect(view.locator('.rr-tl-note')).toBeHidden();
  expect(await range(body), 'one goes on looking where one looked').toEqual(near);
  await page.keyboard.press('ArrowRight');
  await expect(view.locator('.rr-tl-facts')).toContainText('lasts80 µs');
});

viewTest('a panel opens with the selected tab of its view', async ({ page }) => {
  trained('tl-panel');
  const view = await openRuns(page, ['tl-panel']);
  await whole(view);
  await timeline(view);
  await view.getByRole('button', { name: 'open in panel' }).click();
  const panel = page.locator('.rr-view.rr-panel');
  await expect(panel.locator('.rr-tl-body')).toHaveAttribute('data-spans', '82');
  await picture(page, 'timeline-panel');
});
