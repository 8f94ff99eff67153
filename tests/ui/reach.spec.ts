/** Access to everything: by keyboard alone, in a panel, and without the server extension. */
import { spawn } from 'node:child_process';

import { ALWAYS, expect, LiveRecord, openRuns, picture, rows, test, viewTest, whole } from './rankroom';
import { freePort, serverCommand } from './server';

viewTest('a run view can be operated with the keyboard alone', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('keys', 4);
  record.print(0, Array.from({ length: 300 }, (_, i) => `line ${i}.\n`).join(''));
  record.print(2, 'of two\n');
  record.save('done');
  const view = await openRuns(page, ['keys']);
  await whole(view);
  await view.getByRole('button', { name: 'open in panel' }).focus();
  const names: string[] = [];
  for (let i = 0; i < 10; i++) {
    await page.keyboard.press('Tab');
    names.push(await page.evaluate(() => {
      const node = document.activeElement!;
      return node.getAttribute('aria-label') ?? node.textContent ?? node.tagName;
    }));
  }
  expect(names).toEqual([
    'all', '0', '1', '2', '3', expect.stringContaining('only lines'), '', '', '⤓ whole log', 'log of the ranks'
  ]);
  await page.keyboard.press('Home');
  await expect(view.getByText('line 0.')).toBeVisible();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('PageDown');
  await expect(view.getByText('line 21.')).toBeVisible();
  await page.keyboard.press('End');
  await expect(view.getByText('of two')).toBeVisible();
  // Meanwhile, no cell above or below was selected, and rank 2 can be chosen.
  await view.getByRole('button', { name: '2', exact: true }).focus();
  await page.keyboard.press('Enter');
  await expect(view.locator('.rr-row')).toHaveText(['2│of two']);
  await page.keyboard.press(' ');
  await expect(view.locator('.rr-row').last()).toHaveText('2│of two');
  await view.getByPlaceholder('filter').focus();
  await page.keyboard.type('dd a x');
  await expect(view.locator('.rr-foot')).toHaveText('no line with this text');
  await expect(page.locator('.jp-Notebook .jp-Cell')).toHaveCount(1);
});

viewTest('64 ranks can be selected in a strip that shows their states', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('strip', 64);
  for (let rank = 0; rank < 64; rank++) {
    record.print(rank, `line of ${rank}\n`);
    const define = [{ name: 'allreduce x', op: 'allreduce', tensor: 'x', library: 'dist' }];
    const late = rank * 10_000;
    record.add('spans', rank, { cat: 'collective', from: 0, define, name: [0], start: [late], dur: [900_000 - late] });
    record.add('status', rank, { t: 990_000, state: rank === 40 ? 'error' : rank > 60 ? 'released' : 'ok' });
  }
  record.save('failed');
  const view = await openRuns(page, ['strip']);
  await whole(view);
  const strip = view.getByRole('listbox', { name: 'ranks to show' });
  const cells = strip.getByRole('option');
  await expect(cells).toHaveCount(64);
  await expect(cells.nth(40)).toHaveAttribute('aria-label', /^rank 40: error/);
  await expect(cells.first()).toHaveAttribute('aria-label', /^rank 0: ok, waited for others for 70 % of the run$/);
  await cells.nth(12).hover();
  await expect(view.locator('.rr-strip-said')).toHaveText(/^rank 12: ok, waited for others for 57 % of the run$/);
  const field = view.getByRole('searchbox', { name: 'ranks to show' });
  await expect(field).toHaveAttribute('placeholder', 'all (0–63)');

  await cells.nth(3).click();
  await cells.nth(6).click({ modifiers: ['Shift'] });
  await expect(field).toHaveValue('3-6');
  await expect(view.locator('.rr-row')).toHaveCount(4);
  await picture(page, 'strip-light');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press(' ');
  await page.keyboard.press('Shift+ArrowRight');
  await expect(field).toHaveValue('3-6,8-9');
  await expect(cells.nth(9)).toHaveAttribute('aria-selected', 'true');
  await expect(strip).toBeFocused();
  const said = view.locator('.rr-strip-said');
  await expect(said).toHaveText(/^rank 9: ok/);
  await page.theme.setDarkTheme();
  await picture(page, 'strip-dark');
  await expect(said, 'the pointer rests on another').toHaveText(/^rank 9: ok/);
  await page.setViewportSize({ width: 620, height: 800 });
  await expect(said).toHaveText(/^rank 9: ok/);
  await picture(page, 'strip-narrow');

  await field.fill('0,2-3');
  await expect(strip.locator('[aria-selected=true]')).toHaveCount(3);
  await expect(view.locator('.rr-row')).toHaveCount(3);
  await field.fill('70');
  await expect(view.locator('.rr-complaint')).toContainText('no rank 70 in this run');
  await strip.focus();
  await page.keyboard.press('Escape');
  await expect(field).toHaveValue('');
  await expect(view.locator('.rr-complaint')).toBeHidden();
  await expect(strip.locator('[aria-selected=true]')).toHaveCount(0);
  await strip.blur();
  await expect(view.locator('.rr-strip-said')).toHaveText('the more orange, the longer a rank waited for others');
  await expect(page.locator('.jp-Notebook .jp-Cell')).toHaveCount(1);
});

test('the wheel scrolls the notebook until the log has the focus', async ({ page }) => {
  const record = new LiveRecord('wheel');
  record.print(0, Array.from({ length: 300 }, (_, i) => `line ${i}.\n`).join(''));
  record.save('done');
  const view = await openRuns(page, ['wheel']);
  await whole(view);
  await expect(view.locator('.rr-foot')).toContainText('click into the log to scroll it');
  const last = view.getByText('line 299.');
  await view.getByRole('log').hover();
  await page.mouse.wheel(0, -2_000);
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
  await expect(last).toBeVisible();
  await view.getByRole('log').click();
  await expect(view.locator('.rr-foot')).toBeEmpty();
  // Until the browser's compositor knows that the log can scroll, the wheel moves the notebook.
  await expect(async () => {
    await page.mouse.wheel(0, -2_000);
    await expect(last).toBeHidden({ timeout: 1_000 });
  }).toPass();
  await expect(view.getByRole('button', { name: 'to the end' })).toBeVisible();
});

test('a run opens in one panel, which is restored after a reload', async ({ page }) => {
  const record = new LiveRecord('panel');
  record.print(0, Array.from({ length: 300 }, (_, i) => `line ${i}.\n`).join(''));
  const view = await openRuns(page, ['panel']);
  await expect(view.getByText('line 299.')).toBeVisible();
  // Wait for the response, not only the request: a reload would abort it.
  const saved = page.waitForResponse(response => {
    const request = response.request();
    return request.url().includes('/api/workspaces') && (request.postData() ?? '').includes('rankroom:panel');
  });
  await view.getByRole('button', { name: 'open in panel' }).click();
  const panel = page.locator('.rr-panel');
  await expect(panel.getByText('line 299.')).toBeVisible();
  record.print(1, 'both see this\n');
  await expect(panel.getByText('both see this')).toBeVisible();
  await expect(view.getByText('both see this')).toBeVisible();
  await expect.poll(async () => (await rows(panel)).length).toBeGreaterThan(30);
  await picture(page, 'panel-light');
  await view.getByRole('button', { name: 'open in panel' }).click();
  await expect(panel).toHaveCount(1);
  record.save('done');
  await whole(panel);
  await saved;
  // The tab and the filters are as before: in the panel, and under the cell.
  await panel.getByRole('searchbox', { name: 'show only lines' }).fill('both');
  await view.getByRole('button', { name: '1', exact: true }).click();
  await expect(panel.locator('.rr-row')).toHaveCount(1);
  await page.reload();
  await expect(panel.getByText('both see this')).toBeVisible();
  await expect(panel.locator('.rr-row')).toHaveCount(1);
  await expect(panel.getByRole('searchbox', { name: 'show only lines' })).toHaveValue('both');
  await expect(view.locator('.rr-row')).toHaveText(['1│both see this']);
  await expect(view.getByRole('button', { name: '1', exact: true })).toHaveAttribute('aria-pressed', 'true');
});

/** The process group of a second server: the shell and the server; 0 if there is none. */
let second = 0;

test('without the server extension, the summary and a remedy are shown', async ({ page }) => {
  const port = await freePort();
  const { command, url, env } = serverCommand(port, false);
  second = spawn(command, { shell: true, env, stdio: 'ignore', detached: true }).pid ?? 0;
  await expect(async () => expect((await fetch(url)).ok).toBe(true)).toPass({ timeout: 120_000 });
  await page.goto(url);
  const view = await openRuns(page, ['ok']);
  await expect(view.locator('.rr-refusal')).toContainText('jupyter server extension enable rankroom');
  await expect(view.locator('.rr-fallback')).toContainText('static summary of ok');
  await expect(view.locator('.rr-words')).toContainText('2 ranks · done in 1.5 s');
  await picture(page, 'server-missing-light');
});

// Not at the end of the test, when its page still talks to the server.
test.afterAll(async () => {
  if (!second) {
    return;
  }
  process.kill(-second, 'SIGTERM');
  await expect(() => expect(() => process.kill(-second, 0)).toThrow())
    .toPass({ timeout: 10_000 })
    .catch(() => process.kill(-second, 'SIGKILL'));
});
