/**
 * Runs of 400,000 lines and of a million spans: the longest task of the page's main thread while
 * they load, and in all actions of a reader.
 */
import type { Locator } from '@playwright/test';

import { expect, LiveRecord, openRuns, rows, still, test, type Page } from '../../tests/ui/rankroom';
import { report } from './page';
import { tasksOf } from './tasks';

const LINES = 200_000;
const BATCH = 4_000;
const SPANS = 100_000;
const CHUNK = 5_000;

/** Do something, and report the longest task during that. */
async function measured(page: Page, what: string, act: () => Promise<unknown>): Promise<void> {
  const tasks = await tasksOf(page, act);
  expect(tasks.length).toBeGreaterThan(5);
  report(what, 'ours', [Math.max(...tasks)]);
}

/**
 * Wait until this exists. In measured parts, no `expect` may wait: until it succeeds, Playwright
 * describes the page for its error message, in a task of 40 to 60 ms.
 */
function there(what: Locator): Promise<void> {
  return what.first().waitFor({ timeout: 60_000 });
}

test('400,000 lines', async ({ page }) => {
  const record = new LiveRecord('flood');
  record.print(0, 'first\n');
  const view = await openRuns(page, ['flood']);
  await expect(view.locator('.rr-row')).toHaveText(['0│first']);
  expect(await rows(view)).toHaveLength(1); // by now, Playwright has injected its script
  const foot = view.locator('.rr-foot');
  await measured(page, 'lines load', async () => {
    for (let first = 0; first < LINES; first += BATCH) {
      for (const rank of [0, 1]) {
        // Every second line is the same on both ranks, the others differ in a number.
        const loss = (i: number): string => (rank && i % 2 ? '0.654321' : '0.123456');
        record.print(rank, Array.from({ length: BATCH }, (_, i) => `line ${first + i} of the flood: loss ${loss(i)}\n`).join(''));
      }
    }
    record.save('done', { lines: 2 * LINES + 1 });
    await there(view.and(page.locator('[data-complete=true]')));
    await there(view.locator('.rr-words', { hasText: '400,001 lines' }));
    // The list takes many frames to add that many lines.
    await there(foot.filter({ hasText: '300,001 rows' }));
  });
  expect((await rows(view)).pop()).toContain(`line ${LINES - 1} of the flood`);
  const list = view.getByRole('log');
  await measured(page, 'lines are scrolled', async () => {
    await list.click();
    await list.hover();
    for (let i = 0; i < 150; i++) {
      await page.mouse.wheel(0, i < 100 ? -3_000 : 1_500);
    }
    // The browser keeps scrolling for a moment.
    await still(page, () => list.evaluate(node => node.scrollTop));
    await page.keyboard.press('Home');
    await there(view.locator('.rr-row').nth(1).filter({ hasText: 'line 0 of the flood' }));
  });
  const filter = view.getByPlaceholder('filter');
  await measured(page, 'lines are filtered', async () => {
    await filter.fill('line 199999 of');
    await there(foot.filter({ hasText: /^2 rows with this text$/ }));
    await filter.fill('');
    await there(foot.filter({ hasText: '300,001 rows' }));
    await view.locator('.rr-chip[data-rank="1"]').click();
    await there(foot.filter({ hasText: '200,000 rows' }));
    await view.locator('.rr-chip[data-rank="all"]').click();
    await there(foot.filter({ hasText: '300,001 rows' }));
  });
  await measured(page, 'lines are collapsed', async () => {
    await view.getByLabel('collapse identical').uncheck();
    await there(foot.filter({ hasText: '400,001 rows' }));
    await view.getByLabel('collapse identical').check();
    await there(foot.filter({ hasText: '300,001 rows' }));
  });
  await measured(page, 'numbers in lines are compared', async () => {
    await view.getByLabel('but for numbers').check();
    await there(foot.filter({ hasText: '200,001 rows' }));
    await view.getByLabel('but for numbers').uncheck();
    await there(foot.filter({ hasText: '300,001 rows' }));
  });
  await measured(page, 'the view of lines gets narrow', async () => {
    await page.setViewportSize({ width: 480, height: 800 });
    await expect.poll(() => list.evaluate(node => node.clientWidth)).toBeLessThan(480);
  });
});

test('a million spans', async ({ page }) => {
  const record = new LiveRecord('flood-spans');
  record.print(0, 'first\n');
  const view = await openRuns(page, ['flood-spans']);
  await expect(view.locator('.rr-row')).toHaveText(['0│first']);
  const define = [
    { name: 'step' },
    ...Array.from({ length: 8 }, (_, i) => ({ name: `allreduce grad.${i}`, op: 'allreduce', tensor: `grad.${i}`, library: 'hvd.torch' })),
    { name: 'hvd.allreduce' },
    { name: 'op' },
    { name: 'GLOO_ALLREDUCE', tensor: 'grad.0' }
  ];
  await measured(page, 'spans load', async () => {
    for (let first = 0; first < SPANS; first += CHUNK) {
      for (const rank of [0, 1]) {
        const spans = (cat: string, name: (i: number) => number, at: number, dur: number): void =>
          record.add('spans', rank, {
            t: (first + CHUNK) * 100, cat, from: 0, define, name: Array.from({ length: CHUNK }, (_, i) => name(i)),
            start: Array.from({ length: CHUNK }, (_, i) => (i ? 100 : first * 100 + at + rank)),
            dur: Array.from({ length: CHUNK }, (_, i) => dur + (i % 7))
          });
        spans('step', () => 0, 0, 90);
        spans('wait', () => 9, 30, 40);
        spans('collective', i => 1 + (i % 8), 30, 40);
        spans('op', () => 10, 5, 20);
        spans('phase', () => 11, 40, 20);
      }
    }
    record.save('done', { lines: 1 });
    await there(view.and(page.locator('[data-complete=true]')));
  });
  const body = view.locator('.rr-tl-body');
  await measured(page, 'the timeline opens', async () => {
    await view.getByRole('tab', { name: 'Timeline' }).click();
    await there(body.and(page.locator('[data-spans="1000000"]')));
    await there(body.and(page.locator('[data-matched="true"]')));
  });
  await measured(page, 'categories of the timeline open', async () => {
    await body.getByRole('button', { name: 'phase' }).first().click();
    await there(body.locator('.rr-tl-tensor'));
    expect(await body.locator('.rr-tl-tensor').count()).toBe(1);
    await body.getByRole('button', { name: 'collective' }).first().click();
    await there(body.locator('.rr-tl-tensor').nth(8));
  });
  expect(await body.locator('.rr-tl-tensor').count()).toBe(9);
  await measured(page, 'the timeline is zoomed', async () => {
    await body.focus();
    for (const key of 'wwwwwwwwwwwwdddaaasssf') {
      await page.keyboard.press(key);
    }
  });
  const find = view.getByPlaceholder('find spans');
  await measured(page, 'spans are found', async () => {
    await find.fill('grad');
    await there(view.locator('.rr-tl-found', { hasText: /^400,000 matches$/ }));
    await find.press('Enter');
    await find.press('Enter');
    await there(view.locator('.rr-tl-facts'));
    await find.press('Escape');
    await page.keyboard.press('Escape');
  });
  await measured(page, 'a part of the timeline is selected', async () => {
    await body.press('f');
    const box = (await body.locator('.rr-tl-canvas').boundingBox())!;
    await page.mouse.move(box.x + 1, box.y + 10);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width - 1, box.y + 10, { steps: 5 });
    await page.mouse.up();
    await there(view.locator('.rr-tl-totals tbody tr').nth(4));
  });
  expect(await view.locator('.rr-tl-totals tbody tr').count()).toBe(5);
  await measured(page, 'from the timeline to the log, and to the profile', async () => {
    await view.getByRole('button', { name: 'to the log' }).click();
    await there(view.locator('.rr-marked', { hasText: 'first' }));
    await view.getByRole('tab', { name: 'Profile' }).click();
    await there(view.locator('.rr-profile[data-ready=true]'));
  });
});
