/** Live runs, while their views are visible or hidden. */
import type { Request } from '@playwright/test';

import { ALWAYS, expect, LiveRecord, openRuns, readRun, rows, still, test, viewTest, whole, type Page } from './rankroom';

viewTest('live lines appear, bars update in place, the end is shown', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('live-lines');
  record.print(0, 'before\n');
  const view = await openRuns(page, ['live-lines']);
  await expect(view.locator('.rr-row')).toHaveText(['0│before']);
  await expect(view.locator('.rr-words')).toContainText(/2 ranks · running \d+ (s|min)/);
  record.print(1, 'before\n');
  await expect(view.locator('.rr-row')).toHaveText(['0–1│before']);
  record.print(0, '\r 10%|█ |', 'stderr');
  await expect(view.locator('.rr-row')).toHaveText(['0–1│before', /0┃ 10%/]);
  record.print(1, 'half a li');
  record.print(0, '\r 20%|██|', 'stderr');
  await expect(view.locator('.rr-row')).toHaveText(['0–1│before', '1│half a li', /0┃ 20%/]);
  record.print(1, 'ne\n');
  await expect(view.locator('.rr-row')).toHaveText(['0–1│before', '1│half a line', /0┃ 20%/]);
  record.save('done');
  await whole(view);
  await expect(view.locator('.rr-words')).toHaveText('2 ranks · done in 1.0 s · 4 lines');
});

viewTest('the delay from the record to the screen is measured', async ({ page }) => {
  const record = new LiveRecord('live-soon');
  const view = await openRuns(page, ['live-soon']);
  await expect(view.getByRole('log')).toBeAttached();
  const times: number[] = [];
  for (let i = 0; i < 15; i++) {
    const seen = page.evaluate(text => new Promise<number>(done => {
      const list = document.querySelector('.rr-list')!;
      const observer = new MutationObserver(() => {
        if (list.textContent?.includes(text)) {
          observer.disconnect();
          requestAnimationFrame(() => done(Date.now()));
        }
      });
      observer.observe(list, { subtree: true, childList: true, characterData: true });
    }), `line ${i}.`);
    // The observer is installed once the page has answered a later request.
    await page.evaluate(() => 0);
    const written = Date.now();
    record.print(0, `line ${i}.\n`);
    times.push((await seen) - written);
  }
  times.sort((a, b) => a - b);
  console.log(`record to screen: median ${times[7]} ms, slowest ${times[14]} ms`);
  record.save('done');
  await whole(view);
});

viewTest('the log follows its end until the reader scrolls up', async ({ page }) => {
  const record = new LiveRecord('live-tail');
  const view = await openRuns(page, ['live-tail']);
  const print = (first: number, count: number): void =>
    record.print(0, Array.from({ length: count }, (_, i) => `line ${first + i}.\n`).join(''));
  print(0, 100);
  await expect(view.getByText('line 99.')).toBeVisible();
  print(100, 100);
  await expect(view.getByText('line 199.')).toBeVisible();
  const list = view.getByRole('log');
  await list.click();
  await page.keyboard.press('PageUp');
  await expect(view.getByText('line 170.')).toBeVisible();
  const top = await still(page, async () => (await rows(view))[0]);
  print(200, 1_000);
  await expect(view.locator('.rr-words')).toContainText('1,200 lines');
  expect((await rows(view))[0]).toBe(top);
  // Like a person's click: frames pass before the button is released.
  await view.getByRole('button', { name: 'to the end' }).click({ delay: 100 });
  await expect(view.getByText('line 1199.')).toBeVisible();
  await expect(list).toBeFocused();
  print(1_200, 1);
  await expect(view.getByText('line 1200.')).toBeVisible();
  record.save('done');
  await whole(view);
});

viewTest('the line at the top stays there when the view is made narrower', async ({ page }) => {
  const record = new LiveRecord('live-narrower');
  record.print(0, Array.from({ length: 1_000 }, (_, i) => `line ${i}. ${'word '.repeat(60)}\n`).join(''));
  record.save('done');
  const view = await openRuns(page, ['live-narrower']);
  await whole(view);
  await view.getByRole('log').click();
  for (let i = 0; i < 20; i++) {
    await page.keyboard.press('PageUp');
  }
  const first = async (): Promise<string> => (await rows(view))[0].slice(0, 12);
  const top = await still(page, first);
  const { width, height } = page.viewportSize()!;
  const high = await view.locator('.rr-row').first().evaluate(row => row.clientHeight);
  await page.setViewportSize({ width: Math.round(width * 0.7), height });
  await expect.poll(() => view.locator('.rr-row').first().evaluate(row => row.clientHeight)).toBeGreaterThan(high);
  expect(await still(page, first)).toBe(top);
});

viewTest('a hidden view sends no requests and catches up when shown', async ({ page }) => {
  const record = new LiveRecord('live-hidden');
  record.print(0, 'early\n');
  const asked = requests(page, 'live-hidden');
  const view = await openRuns(page, ['live-hidden']);
  await expect(view.getByText('early')).toBeVisible();
  await page.evaluate(() => (window as unknown as Lab).jupyterapp.commands.execute('launcher:create').then(() => null));
  await expect(view).toBeHidden();
  // A frame later, the view knows that it is hidden; its pending requests then end or are aborted.
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
  await expect.poll(() => asked.all.every(request => asked.ended.has(request))).toBe(true);
  const before = asked.all.length;
  record.print(0, 'late\n');
  record.save('done');
  // Another request is answered in the meantime.
  await page.evaluate(() => fetch('/api/status').then(answer => answer.json()));
  expect(asked.all.length).toBe(before);
  await page.getByRole('tab', { name: /runs-/ }).click();
  const again = page.locator('.rr-view').first();
  await whole(again);
  expect(await rows(again)).toEqual(['0│early', '0│late']);
});

viewTest('a live run that is opened again loses no line', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('live-reload');
  record.print(0, 'one\n');
  let view = await openRuns(page, ['live-reload']);
  await expect(view.getByText('one')).toBeVisible();
  const path = await page.evaluate(() => document.title);
  expect(path).toBeTruthy();
  record.print(0, 'two\n');
  view = await openRuns(page, ['live-reload']);
  await expect(view.locator('.rr-row')).toHaveText(['0│one', '0│two']);
  record.print(0, 'three\n');
  await expect(view.locator('.rr-row')).toHaveText(['0│one', '0│two', '0│three']);
  record.save('interrupted');
  await whole(view);
  await expect(view.locator('.rr-words')).toContainText('interrupted after 1.0 s');
});

viewTest('two views of a run: each has its own tab, filter and ranks', async ({ page }) => {
  const record = new LiveRecord('live-twice');
  record.print(0, Array.from({ length: 6 }, (_, i) => `line ${i}.\n`).join(''));
  record.add('spans', 0, { cat: 'user', from: 0, define: [{ name: 'work' }], name: [0], start: [1000], dur: [1000] });
  const views = await openRuns(page, ['live-twice', 'live-twice']);
  const [one, other] = [views.nth(0), views.nth(1)];
  await one.getByRole('searchbox', { name: 'show only lines' }).fill('line 3');
  await expect(one.locator('.rr-row')).toHaveCount(1);
  await other.getByRole('button', { name: '0', exact: true }).click();
  await expect(other.locator('.rr-row')).toHaveCount(6);
  await other.getByRole('tab', { name: 'Timeline' }).click();
  record.print(0, 'line 33.\n');
  await expect(one.locator('.rr-row')).toHaveCount(2);
  await expect(other).toHaveAttribute('data-tab', 'timeline');
  record.save('done');
  await whole(one);
});

test('an unresponsive server is reported and retried without loss', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('live-down');
  record.print(0, 'one\n');
  const view = await openRuns(page, ['live-down']);
  await expect(view.getByText('one')).toBeVisible();
  await page.route(/live-down/, route => route.abort());
  record.print(0, 'two\n');
  await expect(view.getByText('does not respond: retrying in')).toBeVisible();
  await page.unroute(/live-down/);
  await expect(view.locator('.rr-row')).toHaveText(['0│one', '0│two']);
  await expect(view.getByText('does not respond')).toBeHidden();
  record.save('done');
  await whole(view);
});

viewTest('a run whose kernel died is lost but keeps its output', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('live-lost');
  record.print(0, 'last words');
  record.save('running', { owner: { host: 'nowhere', pid: 1 } });
  const old = readRun('live-lost');
  record.age(600);
  const view = await openRuns(page, [old]);
  await whole(view);
  await expect(view.locator('.rr-words')).toContainText('lost: the process');
  expect(await rows(view)).toEqual(['0│last words']);
});

interface Lab {
  jupyterapp: { commands: { execute(id: string): Promise<unknown> } };
}

/** Return the requests for a run from now on, as they are sent, and all that have ended. */
function requests(page: Page, id: string): { all: Request[]; ended: Set<Request> } {
  const all: Request[] = [];
  const ended = new Set<Request>();
  page.on('request', request => {
    if (request.url().includes(id)) {
      all.push(request);
    }
  });
  page.on('requestfinished', request => ended.add(request));
  page.on('requestfailed', request => ended.add(request));
  return { all, ended };
}
