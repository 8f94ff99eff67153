/** The view of each golden record. */
import { ALWAYS, LiveRecord, expect, openRuns, picture, rows, viewTest, whole, type Page } from './rankroom';

viewTest('identical lines of two ranks collapse; values come last', ALWAYS, async ({ page }) => {
  const view = await openRuns(page, ['ok']);
  await whole(view);
  await expect(view.locator('.rr-words')).toHaveText('2 ranks · done in 1.5 s · 11 lines');
  const collapsed = [
    '0–1│hello',
    '0│I am rank 0 of 2',
    '1│I am rank 1 of 2',
    '1┃UserWarning: the loader is slow',
    '0–1│epoch 1  loss 1.000',
    '0–1│epoch 2  loss 0.900',
    '0–1│epoch 3  loss 0.810'
  ];
  expect(await rows(view)).toEqual(collapsed);
  await expect(view.locator('.rr-displays')).toHaveText('ranks 0–1:0.931');
  await picture(page, 'ok-light');

  await view.getByLabel('collapse identical').uncheck();
  await expect(view.locator('.rr-row')).toHaveCount(11);
  await expect(view.locator('.rr-display')).toHaveText(['rank 0:0.931', 'rank 1:0.931']);
  await view.getByRole('button', { name: '1', exact: true }).click();
  await expect(view.locator('.rr-row')).toHaveCount(6);
  await expect(view.getByText('whole log')).toHaveAttribute('href', /runs\/ok\/log\?rank=1$/);
  await view.getByRole('button', { name: 'all' }).click();
  await view.getByLabel('collapse identical').check();
  await expect(view.locator('.rr-row')).toHaveCount(collapsed.length);
  expect(await rows(view)).toEqual(collapsed);

  await view.getByPlaceholder('filter').fill('EPOCH');
  await expect(view.locator('.rr-row')).toHaveCount(3);
  await expect(view.locator('.rr-foot')).toHaveText('3 rows with this text');
  await view.getByPlaceholder('filter').fill('/[0-9] of/');
  await expect(view.locator('.rr-row')).toHaveCount(2);
  await expect(view.getByRole('alert')).toBeHidden();
  await view.getByPlaceholder('filter').fill('/[/');
  await expect(view.getByRole('alert')).toContainText('not a valid regular expression');
});

viewTest('a failure shows its cause first and folds other errors', ALWAYS, async ({ page }) => {
  const view = await openRuns(page, ['failure']);
  await whole(view);
  await expect(view.locator('.rr-words')).toContainText(
    '2 ranks · failed on rank 1 after 900 ms · ValueError: bad batch on rank 1 (cell line 5)'
  );
  await expect(view.locator('.rr-cause')).toHaveText('rank 1 · ValueError: bad batch on rank 1 · cell line 5');
  await expect(view.locator('.rr-traceback').first()).toContainText('----> 5     raise ValueError');
  const red = view.locator('.rr-traceback .ansi-red-fg').first();
  await expect(red).toHaveCSS('color', 'rgb(231, 92, 88)');
  await expect(view.locator('.rr-other summary')).toHaveText(
    'rank 0 · released from allreduce of x · cell line 6'
  );
  await expect(view.locator('.rr-own')).toHaveText(/^----> 5 +raise ValueError/);
  await picture(page, 'failure-light');
  await view.locator('.rr-other summary').click();
  await expect(view.locator('.rr-other .rr-traceback')).toBeVisible();
  await view.getByRole('button', { name: 'first error' }).click();
  await expect(view.locator('.rr-marked')).toHaveText('1✗ValueError: bad batch on rank 1');
  // Also if the filter hides it.
  await view.getByRole('button', { name: '0', exact: true }).click();
  await expect(view.locator('.rr-marked')).toHaveCount(0);
  await view.getByRole('button', { name: 'first error' }).click();
  await expect(view.locator('.rr-marked')).toHaveText('1✗ValueError: bad batch on rank 1');
  await expect(view.getByRole('button', { name: 'all', exact: true })).toHaveAttribute('aria-pressed', 'true');
  await page.theme.setDarkTheme();
  await picture(page, 'failure-dark');
});

viewTest('colors, text attributes and control characters are rendered', async ({ page }) => {
  const view = await openRuns(page, ['colours']);
  await whole(view);
  await expect(view.locator('.ansi-red-fg').first()).toHaveText('red');
  await expect(view.getByText('in the next line')).toHaveClass(/ansi-red-fg/);
  await picture(page, 'colours-light');
  await page.theme.setDarkTheme();
  await picture(page, 'colours-dark');
  const text = (await rows(view)).find(row => row.includes('NUL'));
  expect(text).toContain('NUL ␀ bell ␇ title  cursor  turned \ufffdright to left\ufffd byte \\xff');
});

viewTest('progress bars show their last state, one row each', async ({ page }) => {
  const view = await openRuns(page, ['progress']);
  await whole(view);
  const seen = await rows(view);
  expect(seen[0]).toContain('0┃train: 100%|████████████████████| 100/100');
  expect(seen[1]).toContain('0–1│32/32 ━━━');
  expect(seen[2]).toContain('1┃train:  60%|████████████ ');
  expect(seen.length).toBe(3);
  await picture(page, 'progress-light');
});

viewTest('displays are labeled by rank, merged, updated and cleared', async ({ page }) => {
  const view = await openRuns(page, ['figure', 'clear']);
  const figure = view.nth(0);
  await whole(figure);
  const displays = figure.locator('.rr-display');
  await expect(displays.nth(0).locator('.rr-label')).toHaveText('rank 1');
  await expect(displays.nth(0).locator('img')).toHaveJSProperty('complete', true);
  await expect(displays.nth(1).locator('.rr-label')).toHaveText('ranks 0–1');
  await expect(displays.nth(1).locator('td')).toHaveText(['1', '2.3', '2', '1.1']);
  await expect(displays.nth(2)).toHaveText('rank 0:step 3 of 3');
  await expect(displays.nth(3)).toHaveText('rank 0:tensor([0., 0.])');
  await picture(page, 'figure-light');
  await view.nth(1).scrollIntoViewIfNeeded();
  await whole(view.nth(1));
  await expect(view.nth(1).locator('.rr-display')).toHaveText([
    'rank 1:kept until the next of rank 1',
    'rank 0:the next of rank 0'
  ]);
});

viewTest('partly identical output of four ranks is collapsed', async ({ page }) => {
  const view = await openRuns(page, ['collapse']);
  await whole(view);
  await picture(page, 'collapse-light');
  expect(await rows(view)).toEqual([
    '0–3│begin',
    '0│I write the checkpoint',
    '1–3│I wait',
    '0–3│same',
    '0–3│same',
    '1│last',
    '0–3│first',
    '2│rank 2 alone',
    '0│rank 0 alone',
    '3│rank 3 alone',
    '0–3┃first',
    '0–3│end'
  ]);
});

viewTest('Keras start-up messages fold; numbers of ranks are merged', ALWAYS, async ({ page }) => {
  const view = await openRuns(page, ['keras']);
  await whole(view);
  const fold = "0–3┃▸TensorFlow's start-up messages: 16 lines";
  const all = await rows(view);
  expect(all[0]).toBe(fold);
  expect(all).toHaveLength(20);
  await picture(page, 'keras-folded');

  // By keyboard alone: into the log, to the button, and back.
  const opener = view.locator('.rr-opener').first();
  await view.getByRole('log').focus();
  await page.keyboard.press('Tab');
  await expect(opener).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(view.locator('.rr-member').first()).toBeVisible();
  await expect(opener).toBeFocused();
  await expect(opener).toHaveAttribute('aria-expanded', 'true');
  expect((await rows(view))[1]).toBe(
    '0┃WARNING: All log messages before absl::InitializeLog() is called are written to STDERR'
  );
  await picture(page, 'keras-opened');
  await page.keyboard.press('Space');
  await expect(view.locator('.rr-member')).toHaveCount(0);

  const filter = view.getByPlaceholder('filter');
  await filter.fill('oneDNN');
  await expect(view.locator('.rr-foot')).toContainText('8 rows with this text');
  expect((await rows(view))[0]).toContain('0┃I0000');
  await filter.fill('');

  await view.getByLabel('but for numbers').check();
  await expect(view.locator('.rr-row')).toHaveCount(8);
  const merged = await rows(view);
  expect(merged.slice(0, 3)).toEqual([
    fold,
    '0–3│▸rank 0|1|2|3 of 4: 2000 samples',
    '0–3│Epoch 1/3'
  ]);
  expect(merged[3]).toMatch(/^0–3│▸32\/32 ━+ 2s 13\|9\|14\|7ms\/step - loss: 46.0880\|50.2463\|55.5651\|53.8178 - val_loss: /);
  const loss = view.locator('.rr-numbers', { hasText: '46.0880' });
  await expect(loss).toHaveAttribute('title', 'rank 0: 46.0880\nrank 1: 50.2463\nrank 2: 55.5651\nrank 3: 53.8178');
  await view.locator('.rr-row', { hasText: '46.0880' }).getByRole('button', { name: 'the line of each rank' }).click();
  await expect(view.locator('.rr-member')).toHaveCount(4);
  await expect(view.locator('.rr-member').nth(1)).toContainText('loss: 50.2463 - val_loss: 40.3717');
  await picture(page, 'keras-numbers');
  await page.theme.setDarkTheme();
  await page.setViewportSize({ width: 480, height: 900 });
  await whole(view);
  await expect.poll(() => view.evaluate(node => node.scrollWidth - node.clientWidth)).toBeLessThanOrEqual(1);
  await picture(page, 'keras-numbers-narrow-dark');
  await view.getByLabel('collapse identical').uncheck();
  await expect(view.getByLabel('but for numbers')).toBeHidden();
});

viewTest('a damaged record shows its valid events and the damage', ALWAYS, async ({ page }) => {
  const view = await openRuns(page, ['corrupt']);
  await whole(view);
  await expect(view.locator('.rr-words')).toContainText('lost');
  await expect(view.locator('.rr-notes')).toContainText('3 damaged lines of the record skipped');
  expect((await rows(view)).length).toBeGreaterThan(3);
  await picture(page, 'corrupt-light');
});

viewTest('a newer record is refused with a remedy and the saved summary', async ({ page }) => {
  const view = await openRuns(page, ['newer']);
  await expect(view.locator('.rr-refusal')).toContainText('pip install -U rankroom');
  await expect(view.locator('.rr-fallback')).toContainText('static summary of newer');
  await expect(view.locator('.rr-list')).toBeHidden();
});

viewTest('a missing record is reported, and the saved summary is shown', async ({ page }) => {
  const gone = { version: 1, id: 'gone', state: 'done', start: 1, end: 2_000_001, cluster: 'local', size: 2, ranks: [], lines: 5 };
  const view = await openRuns(page, [gone]);
  await expect(view.locator('.rr-refusal')).toContainText("no record 'gone'");
  await expect(view.locator('.rr-refusal')).toContainText('Below is the summary that was saved with the notebook.');
  await expect(view.locator('.rr-fallback')).toContainText('static summary of gone');
  await picture(page, 'gone-light');
  // The output changes: while the cell runs, at its end, and when the notebook is trusted.
  await change(page, 'running', 'what it printed');
  await expect(view.locator('.rr-fallback')).toContainText('what it printed');
  await expect(view.locator('.rr-words')).toHaveText('2 ranks · was running when this output was saved · 5 lines');
  await expect(view.getByRole('button', { name: 'Interrupt' })).toBeHidden();
  await change(page, 'done', 'and all the rest');
  await expect(view.locator('.rr-fallback')).toHaveText('and all the rest');
  await expect(view.locator('.rr-words')).toContainText('done in 2.0 s');
  await view.evaluate(node => node.setAttribute('data-before', 'trust'));
  await page.evaluate(() => {
    const { outputs } = (window as unknown as Lab).jupyterapp.shell.currentWidget.content.widgets[0].model;
    outputs.trusted = !outputs.trusted;
  });
  await expect(view).not.toHaveAttribute('data-before', 'trust');
  await expect(view.locator('.rr-fallback')).toHaveText('and all the rest');
});

interface Bundle {
  data: { [type: string]: unknown };
}

interface Outputs {
  trusted: boolean;
  get(index: number): { toJSON(): Bundle };
  set(index: number, output: Bundle): void;
}

interface Lab {
  jupyterapp: { shell: { currentWidget: { content: { widgets: Array<{ model: { outputs: Outputs } }> } } } };
}

/** Replace the output of the first visible cell, as a kernel does. */
async function change(page: Page, state: string, html: string): Promise<void> {
  await page.evaluate(({ state, html }) => {
    const { outputs } = (window as unknown as Lab).jupyterapp.shell.currentWidget.content.widgets[0].model;
    const { data, ...rest } = outputs.get(0).toJSON();
    const type = 'application/vnd.rankroom.run+json';
    const { run, ...head } = data[type] as { run: object };
    outputs.set(0, { ...rest, data: { ...data, [type]: { ...head, run: { ...run, state } }, 'text/html': `<div>${html}</div>` } });
  }, { state, html });
}

viewTest('a run without output says so', async ({ page }) => {
  const view = await openRuns(page, ['empty']);
  await whole(view);
  await expect(view.locator('.rr-words')).toHaveText('2 ranks · done in 21 ms · no output');
  await picture(page, 'empty-light');
});

viewTest('64 ranks: ranges can be typed, and identical failures are merged', async ({ page }) => {
  const view = await openRuns(page, ['many']);
  await whole(view);
  await expect(view.locator('.rr-cause')).toContainText('rank 9 · RuntimeError: CUDA out of memory');
  await expect(view.locator('.rr-other')).toHaveCount(1);
  await expect(view.locator('.rr-other summary')).toContainText('ranks 0–8,10–62 · HorovodInternalError');
  await expect(view.locator('.rr-notes')).toContainText('not patched');
  await picture(page, 'many-light');
  await view.getByRole('searchbox', { name: 'ranks to show' }).fill('3, 60-70');
  await expect(view.locator('.rr-row').filter({ hasText: 'is ready' })).toHaveCount(5);
  await expect(view.locator('.rr-row').filter({ hasText: 'epoch 1' }).locator('.rr-ranks')).toHaveText('3,60–63');
  await view.getByRole('searchbox', { name: 'ranks to show' }).fill('77');
  await expect(view.getByRole('alert')).toContainText('it has 0–63');
});

viewTest('after a rank is killed, errors of the other ranks are folded', async ({ page }) => {
  const record = new LiveRecord('killed', 4);
  for (const rank of [0, 1, 3]) {
    record.print(rank, 'epoch 1\n');
    record.add('error', rank, {
      ename: 'HorovodInternalError', evalue: 'Connection closed by peer', cell_line: 6,
      traceback: ['----> 6 hvd.allreduce(x)', 'HorovodInternalError: Connection closed by peer']
    });
    record.add('status', rank, { state: 'released', note: 'released from allreduce of x' });
  }
  record.add('status', 2, { state: 'lost', note: 'was killed by SIGKILL: out of memory' });
  const evalue = 'rank 2 was killed by SIGKILL: out of memory';
  record.save('failed', { failure: { rank: 2, ename: 'RankLost', evalue, cell_line: null } });
  const view = await openRuns(page, ['killed']);
  await expect(view.locator('.rr-words')).toContainText(`failed on rank 2 after 1.0 s · RankLost: ${evalue}`);
  await expect(view.locator('.rr-other summary')).toHaveText('ranks 0–1,3 · released from allreduce of x · cell line 6');
  await expect(view.locator('.rr-cause')).toHaveCount(0);
  await expect(view.locator('.rr-traceback')).toBeHidden();
  await picture(page, 'killed-light');
  await page.theme.setDarkTheme();
  await picture(page, 'killed-dark');
});

viewTest('a failure fits a narrow window, light and dark', async ({ page }) => {
  const view = await openRuns(page, ['failure']);
  await whole(view);
  await page.setViewportSize({ width: 480, height: 900 });
  await whole(view);
  await expect.poll(() => view.evaluate(node => node.scrollWidth - node.clientWidth)).toBeLessThanOrEqual(1);
  await picture(page, 'failure-narrow');
  await page.theme.setDarkTheme();
  await picture(page, 'failure-narrow-dark');
});
