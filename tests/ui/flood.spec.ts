/**
 * Runs of 400,000 lines and of a million spans: while they come, and with all that a reader does to them, the page's
 * main thread has no task that takes 50 ms. It is processor time that counts, as other processes run beside the browser.
 */
import { ALWAYS, expect, LiveRecord, openRuns, rows, still, test, type Page } from './rankroom';

const LONGEST_MS = 50;
const LINES = 200_000;
const BATCH = 4_000;
const SPANS = 100_000;
const CHUNK = 5_000;

interface TraceEvent {
  name: string;
  pid: number;
  tid: number;
  /** Microseconds of processor time. */
  tdur?: number;
  args: { name?: string };
}

/** Do something, and hold the page's tasks meanwhile to the bound. */
async function smoothly(page: Page, what: string, act: () => Promise<unknown>): Promise<void> {
  const context = page.context();
  const browser = context.browser()!;
  await browser.startTracing(context.pages()[0], { categories: ['toplevel'] });
  let trace;
  try {
    await act();
  } finally {
    trace = await browser.stopTracing();
  }
  const { traceEvents } = JSON.parse(trace.toString()) as { traceEvents: TraceEvent[] };
  const threadOf = ({ pid, tid }: TraceEvent): string => `${pid} ${tid}`;
  const main = new Set(traceEvents.filter(({ args }) => args.name === 'CrRendererMain').map(threadOf));
  const tasks = traceEvents.filter(event => event.name.endsWith('RunTask') && main.has(threadOf(event)));
  const longest = tasks.reduce((most, { tdur = 0 }) => Math.max(most, tdur / 1000), 0);
  console.log(`${what}: ${tasks.length} tasks, the longest ${longest.toFixed(0)} ms`);
  expect(tasks.length).toBeGreaterThan(5);
  expect(longest, `the longest task while: ${what}`).toBeGreaterThan(0);
  expect(longest, `the longest task while: ${what}`).toBeLessThan(LONGEST_MS);
}

test('400,000 lines load, scroll, filter and collapse without a long task', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('flood');
  record.print(0, 'first\n');
  const view = await openRuns(page, ['flood']);
  await expect(view.locator('.rr-row')).toHaveText(['0│first']);
  const foot = view.locator('.rr-foot');
  await smoothly(page, 'it loads', async () => {
    for (let first = 0; first < LINES; first += BATCH) {
      for (const rank of [0, 1]) {
        // Every second line is the same on both ranks, the others differ in a number.
        const loss = (i: number): string => (rank && i % 2 ? '0.654321' : '0.123456');
        record.print(rank, Array.from({ length: BATCH }, (_, i) => `line ${first + i} of the flood: loss ${loss(i)}\n`).join(''));
      }
    }
    record.save('done', { lines: 2 * LINES + 1 });
    await expect(view).toHaveAttribute('data-complete', 'true');
    await expect(view.locator('.rr-words')).toContainText('400,001 lines');
    // The list takes so many lines in over many frames.
    await expect(foot).toContainText('300,001 rows');
    expect((await rows(view)).pop()).toContain(`line ${LINES - 1} of the flood`);
  });
  const list = view.getByRole('log');
  await smoothly(page, 'it is scrolled', async () => {
    await list.click();
    await list.hover();
    for (let i = 0; i < 150; i++) {
      await page.mouse.wheel(0, i < 100 ? -3_000 : 1_500);
    }
    // The browser scrolls on for a moment.
    await still(page, () => list.evaluate(node => node.scrollTop));
    await page.keyboard.press('Home');
    await expect(view.locator('.rr-row').nth(1)).toContainText('line 0 of the flood');
  });
  const filter = view.getByPlaceholder('filter');
  await smoothly(page, 'it is filtered', async () => {
    await filter.fill('line 199999 of');
    await expect(foot).toHaveText('2 rows with this text');
    await filter.fill('');
    await expect(foot).toContainText('300,001 rows');
    await view.locator('.rr-chip[data-rank="1"]').click();
    await expect(foot).toContainText('200,000 rows');
    await view.locator('.rr-chip[data-rank="all"]').click();
    await expect(foot).toContainText('300,001 rows');
  });
  await smoothly(page, 'it is collapsed', async () => {
    await view.getByLabel('collapse identical').uncheck();
    await expect(foot).toContainText('400,001 rows');
    await view.getByLabel('collapse identical').check();
    await expect(foot).toContainText('300,001 rows');
  });
  await smoothly(page, 'its numbers are compared', async () => {
    await view.getByLabel('but for numbers').check();
    await expect(foot).toContainText('200,001 rows', { timeout: 60_000 });
    await view.getByLabel('but for numbers').uncheck();
    await expect(foot).toContainText('300,001 rows');
  });
  await smoothly(page, 'it gets narrow', async () => {
    await page.setViewportSize({ width: 480, height: 800 });
    await expect.poll(() => list.evaluate(node => node.clientWidth)).toBeLessThan(480);
  });
});

test('a million spans load and are shown, searched and summed up without a long task', ALWAYS, async ({ page }) => {
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
  await smoothly(page, 'they load', async () => {
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
    await expect(view).toHaveAttribute('data-complete', 'true');
  });
  const body = view.locator('.rr-tl-body');
  await smoothly(page, 'the timeline opens', async () => {
    await view.getByRole('tab', { name: 'Timeline' }).click();
    await expect(body).toHaveAttribute('data-spans', '1000000');
    await expect(body).toHaveAttribute('data-matched', 'true');
  });
  await smoothly(page, 'categories open', async () => {
    await body.getByRole('button', { name: 'phase' }).first().click();
    await expect(body.locator('.rr-tl-tensor')).toHaveCount(1);
    await body.getByRole('button', { name: 'collective' }).first().click();
    await expect(body.locator('.rr-tl-tensor')).toHaveCount(9);
  });
  await smoothly(page, 'the reader zooms', async () => {
    await body.focus();
    for (const key of 'wwwwwwwwwwwwdddaaasssf') {
      await page.keyboard.press(key);
    }
  });
  const find = view.getByPlaceholder('find spans');
  await smoothly(page, 'spans are found', async () => {
    await find.fill('grad');
    await expect(view.locator('.rr-tl-found')).toHaveText('400,000 matches');
    await find.press('Enter');
    await find.press('Enter');
    await expect(view.locator('.rr-tl-facts')).toBeVisible();
    await find.press('Escape');
    await page.keyboard.press('Escape');
  });
  await smoothly(page, 'a part is selected', async () => {
    await body.press('f');
    const box = (await body.locator('.rr-tl-canvas').boundingBox())!;
    await page.mouse.move(box.x + 1, box.y + 10);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width - 1, box.y + 10, { steps: 5 });
    await page.mouse.up();
    await expect(view.locator('.rr-tl-totals tbody tr')).toHaveCount(5);
  });
  await smoothly(page, 'from there to the log, and to the profile', async () => {
    await view.getByRole('button', { name: 'to the log' }).click();
    await expect(view.locator('.rr-marked')).toContainText('first');
    await view.getByRole('tab', { name: 'Profile' }).click();
    await expect(view.locator('.rr-profile')).toHaveAttribute('data-ready', 'true');
  });
});
