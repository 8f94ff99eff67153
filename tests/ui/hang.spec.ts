/** A live run that is stuck: the explanation, and a button for each step that the reader can take. */
import type { Locator } from '@playwright/test';

import { ALWAYS, expect, LiveRecord, openRuns, picture, readRun, viewTest, whole, type Json, type Page } from './rankroom';

/** Return a hang of four ranks that has lasted for this many seconds. */
function hang(seconds: number): Json {
  const golden = readRun('hang').hang as Json;
  return { ...golden, text: String(golden.text).replace('for 6 s', `for ${seconds} s`) };
}

/** Answer a route of the run; return the requests for it, as they are sent. */
async function answer(page: Page, path: string, status: number, body: Json): Promise<string[]> {
  const asked: string[] = [];
  await page.route(new RegExp(`/rankroom/runs/${path}`), route => {
    const rank = new URL(route.request().url()).searchParams.get('rank');
    asked.push(`${route.request().method()} ${rank ?? ''}`);
    return route.fulfill({ status, json: body });
  });
  return asked;
}

function step(view: Locator, name: string | RegExp): Locator {
  return view.locator('.rr-hang').getByRole('button', { name });
}

viewTest('a hang is explained while it lasts, and hidden when over', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('hang-comes', 4);
  record.print(0, 'step 0\n');
  const view = await openRuns(page, ['hang-comes']);
  await expect(view.getByText('step 0')).toBeVisible();
  const banner = view.locator('.rr-hang');
  await expect(banner).toBeHidden();
  record.save('running', { hang: hang(5) });
  await expect(view.getByRole('alert')).toHaveText(
    'ranks 0–1,3 wait in allreduce #12 (cell line 7) for 5 s; rank 2 is stuck at cell line 9: time.sleep(600)'
  );
  await expect(banner.getByRole('listitem')).toHaveText([
    'ranks 0–1,3wait in allreduce #12 (cell line 7)dist.all_reduce(torch.ones(3))',
    'rank 2is stuck at cell line 9time.sleep(600)'
  ]);
  await expect(banner.getByRole('button')).toHaveText(['■ Interrupt', 'Release', 'Show all stacks', 'Restart rank 2']);

  // The seconds count on in the same alert, which is not announced again, and the focus stays.
  const alert = (await view.getByRole('alert').elementHandle())!;
  await step(view, 'Release').focus();
  record.save('running', { hang: hang(6) });
  await expect(view.getByRole('alert')).toContainText('for 6 s');
  expect(await alert.evaluate(node => node.isConnected)).toBe(true);
  await expect(step(view, 'Release')).toBeFocused();

  record.print(1, 'on we go\n');
  record.save('running');
  await expect(banner).toBeHidden();
  await expect(view.getByRole('log')).toBeFocused();
  record.save('running', { hang: hang(7) });
  await expect(banner).toBeVisible();
  record.save('done', { hang: hang(7) });
  await whole(view);
  await expect(banner).toBeHidden();
  await expect(view.getByRole('button', { name: 'Interrupt' })).toBeHidden();
});

viewTest('each remedy is a button that reports success or failure', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('hang-steps', 4);
  record.save('running', { hang: hang(6) });
  const view = await openRuns(page, ['hang-steps']);
  const said = view.locator('.rr-said');

  const released = await answer(page, 'hang-steps/release', 200, { message: 'released torch on the ranks of local' });
  await step(view, 'Release').click();
  await expect(said).toHaveText('released torch on the ranks of local');
  expect(released).toEqual(['POST ']);

  await answer(page, 'hang-steps/interrupt', 503, { message: 'cluster local does not answer' });
  await step(view, 'Interrupt').focus();
  await page.keyboard.press('Enter');
  await expect(said).toHaveText('cluster local does not answer');
  await expect(said).toHaveClass(/rr-trouble/);
  await expect(step(view, 'Interrupt')).toBeFocused();

  const restarted = await answer(page, 'hang-steps/restart', 200, { message: 'rank 2 was restarted, without variables' });
  const dialog = page.locator('.jp-Dialog');
  await step(view, 'Restart rank 2').click();
  await expect(dialog).toContainText('Its variables are lost. The other ranks keep theirs.');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await expect(dialog).toBeHidden();
  expect(restarted).toEqual([]);
  await step(view, 'Restart rank 2').click();
  await dialog.getByRole('button', { name: 'Restart' }).click();
  await expect(said).toHaveText('rank 2 was restarted, without variables');
  expect(restarted).toEqual(['POST 2']);
  record.save('done');
  await whole(view);
  await expect(said).toBeHidden();
});

viewTest('a remedy runs once, however often its button is pressed', async ({ page }) => {
  const record = new LiveRecord('hang-once');
  record.print(0, 'here\n');
  const view = await openRuns(page, ['hang-once']);
  await expect(view.getByText('here')).toBeVisible();
  let letGo = (): void => undefined;
  const answered = new Promise<void>(done => (letGo = done));
  let count = 0;
  await page.route(/hang-once\/interrupt/, async route => {
    count += 1;
    await answered;
    await route.fulfill({ json: { message: 'every rank was sent an interrupt' } });
  });
  // A run that is not stuck has this button as well, in its header.
  const button = view.getByRole('button', { name: 'Interrupt' });
  await button.click();
  await expect(button).toBeDisabled();
  await expect(view.locator('.rr-said')).toHaveText('interrupting all ranks …');
  await button.click({ force: true });
  await button.press('Enter');
  letGo();
  await expect(view.locator('.rr-said')).toHaveText('every rank was sent an interrupt');
  await expect(button.first()).toBeEnabled();
  expect(count).toBe(1);
  // The run continues, so the next steps of the ladder are offered.
  await expect(view.getByRole('alert')).toHaveText('The run is still running although it was interrupted.');
  await expect(step(view, 'Release')).toBeVisible();
  record.save('interrupted');
  await whole(view);
  await expect(view.locator('.rr-hang')).toBeHidden();
});

viewTest('stacks of all ranks are shown, refreshed and hidden', async ({ page }) => {
  const record = new LiveRecord('hang-stacks', 4);
  record.save('running', { hang: hang(6) });
  const view = await openRuns(page, ['hang-stacks']);
  const deep = Array.from({ length: 60 }, (_, i) => `  File "/a/${i}.py", line ${i}, in f${i}`).join('\n');
  const waits = `MainThread:\n  File "Cell", line 7, in <module>\n    <b>all_reduce</b>\n${deep}`;
  const stacks = { 0: waits, 1: waits, 2: 'MainThread:\n  File "Cell", line 9, in <module>\n    time.sleep(600)', 3: waits };
  const asked = await answer(page, 'hang-stacks/stacks', 200, { stacks });
  await step(view, 'Show all stacks').click();
  const region = view.getByRole('region', { name: 'stacks of all ranks' });
  await expect(region.locator('.rr-who')).toHaveText(['ranks 0–1,3', 'rank 2']);
  await expect(region.locator('pre').first()).toContainText('<b>all_reduce</b>');
  const [inside, whole] = await region.evaluate(node => [node.clientHeight, node.scrollHeight]);
  expect(inside).toBeLessThan(450);
  expect(whole).toBeGreaterThan(inside);
  await expect(step(view, 'Hide stacks')).toHaveAttribute('aria-expanded', 'true');
  await picture(page, 'hang-stacks-light');
  await view.getByRole('button', { name: 'Refresh' }).click();
  await expect.poll(() => asked.length).toBe(2);
  await step(view, 'Hide stacks').click();
  await expect(region).toBeHidden();
  record.save('done');
});

viewTest('64 ranks: places of a hang are limited, and restarts combined', async ({ page }) => {
  const every = (by: number, first: number): number[] => Array.from({ length: Math.ceil((64 - first) / by) }, (_, i) => first + i * by);
  const places = [
    ...Array.from({ length: 8 }, (_, i) => ({ ranks: every(9, i), state: 'waits', words: `wait in broadcast weights.${i} (cell line 7)` })),
    { ranks: every(9, 8), state: 'silent', words: 'do not respond' }
  ];
  const record = new LiveRecord('hang-many', 64);
  record.save('running', { hang: { since: 0, text: '57 ranks wait', places } });
  const view = await openRuns(page, ['hang-many']);
  await expect(view.locator('.rr-places li')).toHaveCount(9);
  await expect(view.locator('.rr-places li').last()).toHaveText('and ranks 8,17,26,35,44,53,62 elsewhere');
  await expect(step(view, 'Restart')).toHaveText('Restart 7 ranks');
  record.save('done');
});

viewTest('a hang fits a narrow window and is shown in a panel', async ({ page }) => {
  const record = new LiveRecord('hang-looks', 4);
  record.print(0, 'step 0\nstep 1\n');
  record.save('running', { hang: hang(6) });
  const view = await openRuns(page, ['hang-looks']);
  await expect(view.locator('.rr-hang')).toBeVisible();
  await page.setViewportSize({ width: 1200, height: 700 });
  await picture(page, 'hang-wide');
  await page.setViewportSize({ width: 400, height: 800 });
  await expect.poll(() => view.evaluate(node => node.scrollWidth - node.clientWidth)).toBeLessThanOrEqual(1);
  await picture(page, 'hang-narrow');
  await page.theme.setDarkTheme();
  await picture(page, 'hang-narrow-dark');
  await page.setViewportSize({ width: 1200, height: 700 });
  await picture(page, 'hang-wide-dark');
  await view.getByRole('button', { name: 'open in panel' }).click();
  const panel = page.locator('.rr-panel');
  await expect(panel.locator('.rr-hang').getByRole('button', { name: 'Release' })).toBeVisible();
  await picture(page, 'hang-panel-dark');
  record.save('done');
  await whole(panel);
});
