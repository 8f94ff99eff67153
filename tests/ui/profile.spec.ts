/** The profile under a cell: what it says about golden traces, and how to use it. */
import type { Locator } from '@playwright/test';

import { ALWAYS, expect, LiveRecord, openRuns, picture, test, viewTest, whole, type Page } from './rankroom';

async function openProfile(page: Page, run: string): Promise<Locator> {
  const view = await openRuns(page, [run]);
  await whole(view);
  await view.getByRole('tab', { name: 'Profile' }).click();
  const tab = view.locator('.rr-profile');
  await expect(tab).toHaveAttribute('data-ready', 'true');
  return tab;
}

function section(tab: Locator, title: string): Locator {
  return tab.getByRole('region', { name: title });
}

/** Return the texts of a column, from top to bottom. */
function column(table: Locator, key: string): Promise<string[]> {
  return table.locator(`tbody .rr-col-${key}`).allInnerTexts();
}

viewTest('the profile shows diagnosis, ranks and collectives', ALWAYS, async ({ page }) => {
  const tab = await openProfile(page, 'trace-slow_loader');
  await expect(tab.locator('.rr-diagnosis')).toHaveText(/^steps 2–40: rank 2 arrives last in \d+ % of 39 allreduces and costs 35 % of a step; its data loading takes 12\.0 of 23\.1 ms, 3\.0 × the others'$/);
  const ranks = section(tab, 'Time of each rank');
  await expect(ranks.locator('tbody tr')).toHaveCount(4);
  await expect(ranks.locator('tbody tr').nth(2).locator('.rr-stack')).toHaveAttribute('aria-label', /^computing \d+ %, data loading \d+ %/);
  await expect(section(tab, 'Ranks that the others waited for').locator('tbody tr')).toHaveCount(1);
  await expect(section(tab, 'Collectives').locator('tbody .rr-col-collective')).toHaveText(['hvd.torch allreduce']);
  await expect(tab.locator('xpath=ancestor::*[contains(@class,"rr-view")]').locator('.rr-words')).toContainText(
    /slowest: rank 2, \+35 % of a step/
  );
  await picture(page, 'profile-light');
  await page.theme.setDarkTheme();
  await picture(page, 'profile-dark');
});

viewTest('each phase has tables; the loop comes first with its speed', ALWAYS, async ({ page }) => {
  const tab = await openProfile(page, 'trace-imports');
  await expect(tab.locator('.rr-diagnosis')).toHaveText(
    /^steps 3–40: rank 2 .* costs 61 % of a step; it spends 20\.1 of 26\.3 ms in load, 4\.9 × the others' time; before that: 10\.4 s, 10\.0 s of it imports$/
  );
  const phases = tab.getByRole('group', { name: 'part of the run' });
  await expect(phases.getByRole('button')).toHaveText([
    'steps 3–40 1.0 s', 'start-up 10.1 s', 'warm-up 354 ms', 'rest 1 ms', 'whole run 11.4 s'
  ]);
  const pressed = phases.locator('[aria-pressed="true"]');
  await expect(pressed).toHaveText('steps 3–40 1.0 s');
  await expect(tab.locator('.rr-facts')).toHaveText(
    '38 steps/s · 26.3 ms per step · 4,859 samples/s · a step ends with SGD.step in line 3 · 76 collectives'
  );
  const ranks = section(tab, 'Time of each rank');
  await expect(ranks.locator('tbody .rr-col-waiting').first()).toContainText('61 %');
  await picture(page, 'profile-loop-light');
  await page.theme.setDarkTheme();
  await picture(page, 'profile-loop-dark');
  await phases.getByRole('button', { name: 'whole run' }).focus();
  await page.keyboard.press('Enter');
  await expect(pressed).toHaveText('whole run 11.4 s');
  await expect(pressed).toBeFocused();
  await expect(ranks.locator('tbody .rr-col-waiting').first()).toContainText('6 %');
  await expect(section(tab, 'Collectives').locator('tbody .rr-col-calls')).toHaveText('80');
  await phases.getByRole('button', { name: 'start-up' }).click();
  await expect(tab.locator('.rr-facts')).toHaveText('10.1 s · 10.0 s of it imports · 0 collectives');
  await expect(section(tab, 'Collectives').locator('tbody tr')).toHaveCount(0);
  await page.setViewportSize({ width: 600, height: 900 });
  await tab.scrollIntoViewIfNeeded();
  await picture(page, 'profile-loop-narrow');
  await expect.poll(() => tab.evaluate(node => node.scrollWidth - node.clientWidth)).toBeLessThanOrEqual(1);
  const two = await openProfile(page, 'trace-validation');
  await expect(two.locator('.rr-facts')).toContainText(
    'not counting 2 steps in which all ranks also did something else · ranks did between 29 and 30 steps · another loop, with SGD.step in line 9: 24 steps in 336 ms'
  );
});

viewTest('memory is shown for each rank, and a rise is pointed out', async ({ page }) => {
  const record = new LiveRecord('profile-memory');
  for (const rank of [0, 1]) {
    record.add('spans', rank, { t: 20_000_000, cat: 'cell', from: 0, define: [{ name: 'train()', line: 1 }], name: [0], start: [0], dur: [20_000_000] });
    for (let i = 0; i < 20; i++) {
      record.add('sample', rank, { t: 1_000_000 * i, cpu: 95, memory: 1.2e9 + rank * 5e7 * i, gpu: 80, gpu_memory: 9e9 + 1e8 * rank });
    }
  }
  record.save('done');
  const tab = await openProfile(page, 'profile-memory');
  await expect(tab.locator('.rr-facts')).toContainText(
    'peak memory 1.2 GB to 2.1 GB per rank · 9.0 GB to 9.1 GB on its GPU · memory of rank 1 rises throughout the run, by 750.0 MB on rank 1'
  );
  const memory = section(tab, 'Memory of each rank');
  await expect(memory.locator('tbody tr')).toHaveCount(2);
  expect(await column(memory, 'rise')).toEqual(['0 B', '750.0 MB']);
  await memory.scrollIntoViewIfNeeded();
  await picture(page, 'profile-memory-light');
  await page.theme.setDarkTheme();
  await page.setViewportSize({ width: 600, height: 900 });
  await memory.scrollIntoViewIfNeeded();
  await picture(page, 'profile-memory-narrow-dark');
  await expect.poll(() => tab.evaluate(node => node.scrollWidth - node.clientWidth)).toBeLessThanOrEqual(1);
});

viewTest('columns sort by click and by key', async ({ page }) => {
  const tab = await openProfile(page, 'trace-slow_loader');
  const ranks = section(tab, 'Time of each rank');
  const heading = ranks.getByRole('button', { name: 'data loading' });
  expect(await column(ranks, 'rank')).toEqual(['0', '1', '2', '3']);
  await heading.click();
  await expect(ranks.locator('thead .rr-col-data')).toHaveAttribute('aria-sort', 'descending');
  expect((await column(ranks, 'rank'))[0]).toBe('2');
  await heading.press('Enter');
  await expect(ranks.locator('thead .rr-col-data')).toHaveAttribute('aria-sort', 'ascending');
  expect((await column(ranks, 'rank'))[3]).toBe('2');
  await expect(heading).toBeFocused();
  await ranks.getByRole('button', { name: 'rank', exact: true }).press(' ');
  expect(await column(ranks, 'rank')).toEqual(['0', '1', '2', '3']);
});

viewTest('the tables are copied as text and as CSV', async ({ page }) => {
  const tab = await openProfile(page, 'trace-straggler');
  await tab.getByRole('button', { name: 'whole run' }).click();
  const copied = async (title: string, button: string): Promise<string> => {
    await section(tab, title).getByRole('button', { name: button }).click();
    // Return what would be pasted.
    return page.evaluate(() => new Promise<string>(done => {
      const area = document.createElement('textarea');
      document.body.append(area);
      area.focus();
      area.addEventListener('paste', event => done(event.clipboardData?.getData('text/plain') ?? ''));
      navigator.clipboard.readText().then(done, () => document.execCommand('paste'));
    }));
  };
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  expect(await copied('Time of each rank', 'Copy CSV')).toMatch(
    /^rank,compute \(µs\),data \(µs\),waiting \(µs\),exposed \(µs\),idle \(µs\),overlapped \(µs\)\n0,325224,0,999714,102614,100,0\n/
  );
  await expect(section(tab, 'Time of each rank').getByRole('status')).toHaveText('copied 2 ranks');
  expect(await copied('Collectives', 'Copy text')).toMatch(/^collective +calls +bytes +time per rank.*\n─+\nhvd\.torch allreduce +50 +4\.1 kB/);
});

viewTest('a profile fits a narrow window, light and dark', async ({ page }) => {
  const tab = await openProfile(page, 'trace-slow_loader');
  await page.setViewportSize({ width: 600, height: 900 });
  await tab.scrollIntoViewIfNeeded();
  await picture(page, 'profile-narrow');
  await expect.poll(() => tab.evaluate(node => node.scrollWidth - node.clientWidth)).toBeLessThanOrEqual(1);
  await page.setViewportSize({ width: 480, height: 900 });
  await page.theme.setDarkTheme();
  await picture(page, 'profile-narrow-dark');
});

viewTest('64 ranks: the first 16 are listed, and all on request', async ({ page }) => {
  const record = new LiveRecord('profile-64', 64);
  for (let rank = 0; rank < 64; rank++) {
    record.add('status', rank, { state: 'running', t: 0 });
    const late = rank === 41 ? 30_000 : 4_000 + 100 * (rank % 7);
    const names = { name: Array(20).fill(0), dur: Array.from({ length: 20 }, () => 36_000 - late) };
    const start = [late, ...Array<number>(19).fill(36_000)];
    const define = [{ name: 'allreduce g', op: 'allreduce', tensor: 'g', library: 'dist', bytes: 1e6 }, { name: 'dist.all_reduce' }];
    record.add('spans', rank, { cat: 'collective', from: 0, define, ...names, start });
    record.add('spans', rank, { cat: 'wait', ...names, name: Array(20).fill(1), start });
    record.add('status', rank, { state: 'ok', t: 720_000 });
  }
  record.save('done');
  const tab = await openProfile(page, 'profile-64');
  await expect(tab.locator('.rr-diagnosis')).toContainText('steps 2–20: rank 41 arrives last in 100 % of 19 allreduces');
  const ranks = section(tab, 'Time of each rank');
  await expect(ranks.locator('tbody tr')).toHaveCount(16);
  await ranks.getByRole('button', { name: 'computing' }).click();
  expect((await column(ranks, 'rank'))[0]).toBe('41');
  await picture(page, 'profile-64');
  await ranks.getByRole('button', { name: 'show all 64 ranks' }).click();
  await expect(ranks.locator('tbody tr')).toHaveCount(64);
  const scrolls = await ranks.locator('.rr-tabular-scroll').evaluate(node => node.scrollHeight > node.clientHeight + 1);
  expect(scrolls).toBe(false);
});

viewTest('a profile with nothing to report says why', ALWAYS, async ({ page }) => {
  const alone = await openProfile(page, 'trace-alone');
  await expect(alone.locator('.rr-diagnosis')).toContainText('No collectives in this run');
  await expect(alone.getByRole('table')).toHaveCount(1);
  const one = await openProfile(page, 'trace-one_rank');
  await expect(one.locator('.rr-diagnosis')).toContainText('only one rank');
  const hostile = await openProfile(page, 'trace-hostile');
  await expect(hostile.locator('.rr-facts')).toContainText('25 spans dropped');
  await picture(page, 'profile-hostile');
});

// With a page of its own: the page of the other tests has read this run's profile already.
test('an unresponsive server is reported, and the profile is retried', async ({ page }) => {
  await page.route(/trace-slow_loader\/profile/, route => route.abort());
  const view = await openRuns(page, ['trace-slow_loader']);
  await whole(view);
  await view.getByRole('tab', { name: 'Profile' }).click();
  const words = view.locator('.rr-diagnosis');
  await expect(words).toHaveText(
    'The profile cannot be shown now: the Jupyter server does not respond; retrying.'
  );
  await expect(view.locator('.rr-profile').getByRole('region')).toHaveCount(0);
  await picture(page, 'profile-unanswered');
  await page.unroute(/trace-slow_loader\/profile/);
  await expect(words).toContainText('rank 2 arrives last');
});

test('times of ranks are shown even if the profile precedes the spans', async ({ page }) => {
  const profiled = page.waitForResponse(/trace-slow_loader\/profile/);
  await page.route(/trace-slow_loader\/events/, async route => {
    await profiled;
    await route.continue();
  });
  await page.evaluate(async () => {
    const { jupyterapp } = window as unknown as { jupyterapp: { commands: { execute(id: string, args: object): Promise<unknown> } } };
    await jupyterapp.commands.execute('rankroom:open-run', { id: 'trace-slow_loader', tab: 'profile' });
  });
  const ranks = section(page.locator('.rr-panel .rr-profile'), 'Time of each rank');
  await expect(ranks.locator('tbody tr')).toHaveCount(4);
});

viewTest('the profile of a live run is updated while it is visible', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('profile-live', 2);
  const define = [{ name: 'allreduce g', op: 'allreduce', tensor: 'g', library: 'dist' }, { name: 'dist.all_reduce' }];
  let end = 0;
  const step = (n: number): void => {
    for (const rank of [0, 1]) {
      const start = [120_000 * n + (rank ? 100_000 : 20_000)];
      const dur = [120_000 * (n + 1) - start[0]];
      record.add('spans', rank, { cat: 'collective', ...(n ? {} : { from: 0, define }), name: [0], start, dur });
      record.add('spans', rank, { cat: 'wait', name: [1], start, dur });
    }
    end = 120_000 * (n + 1);
  };
  [0, 1].forEach(rank => record.add('status', rank, { state: 'running', t: 0 }));
  const view = await openRuns(page, ['profile-live']);
  const tab = view.locator('.rr-profile');
  step(0);
  await view.getByRole('tab', { name: 'Profile' }).click();
  await expect(tab.locator('.rr-diagnosis')).toContainText('so far: rank 1 arrives last in the only allreduce');
  step(1);
  step(2);
  await expect(tab.locator('.rr-diagnosis')).toContainText('100 % of 3 allreduces');
  await expect(view.locator('.rr-words')).not.toContainText('slowest');
  // While hidden, it does not change.
  await view.getByRole('tab', { name: 'Logs' }).click();
  await expect(tab).toBeHidden();
  step(3);
  record.print(0, 'four\n');
  await expect(view.locator('.rr-row')).toHaveCount(1);
  await expect(tab.locator('.rr-diagnosis')).toContainText('of 3 allreduces');
  await view.getByRole('tab', { name: 'Profile' }).click();
  await expect(tab.locator('.rr-diagnosis')).toContainText('of 4 allreduces');
  // Rank 0 has waited 320 of 480 ms, and 320 of 960 ms once time has passed without a collective.
  const share = section(tab, 'Ranks that the others waited for').locator('tbody .rr-col-cost .rr-share').first();
  await expect(share).toHaveText('67 %');
  record.add('spans', 0, { t: 2 * end, cat: 'collective', name: [], start: [], dur: [] });
  await expect(share).toHaveText('33 %');
  [0, 1].forEach(rank => record.add('status', rank, { state: 'ok', t: end }));
  record.save('done');
  await expect(tab).toHaveAttribute('data-ready', 'true');
  await expect(tab.locator('.rr-diagnosis')).toHaveText(/^rank 1 arrives last/);
  await expect(view.locator('.rr-words')).toContainText('slowest: rank 1, others waited 67 % of the run');
});
