/** Ranks that wait for an answer: in the debugger, or in input(). */
import type { Locator } from '@playwright/test';

import { ALWAYS, expect, kernelReady, LiveRecord, openRuns, picture, rows, test, viewTest, whole, type Json, type Page } from './rankroom';

const STOPPED = [
  '> Cell In[3](5)<module>()',
  '      3 for step, (x, y) in enumerate(loader):',
  '      4     loss = loss_of(model(x), y)',
  '----> 5     breakpoint()',
  '      6     loss.backward()',
  ''
].join('\n');

function command(rank: number, number = 1): Json {
  return { rank, number, kind: 'debugger', text: 'ipdb> ', since: 0, place: 'cell line 5' };
}

/** Return the answers that are sent to a run; the server accepts them, or gives a `refusal`. */
async function answers(page: Page, id: string, refusal = ''): Promise<string[]> {
  const given: string[] = [];
  await page.route(new RegExp(`/rankroom/runs/${id}/answer`), route => {
    const { text, prompts } = route.request().postDataJSON() as { text: string; prompts: string };
    given.push(`${text} → ${prompts}`);
    return route.fulfill({ status: refusal ? 400 : 200, json: { message: refusal || 'taken' } });
  });
  return given;
}

async function execute(page: Page, command: string, args: Json = {}): Promise<void> {
  await page.evaluate(async ({ command, args }) => {
    const { jupyterapp } = window as unknown as { jupyterapp: { commands: { execute(id: string, args: Json): Promise<unknown> } } };
    await jupyterapp.commands.execute(command, args);
  }, { command, args });
}

/** Open a notebook with these cells and a kernel; `begin` runs a cell without waiting for its end. */
async function openCells(page: Page, path: string, sources: string[]): Promise<{
  cell: (index: number) => Locator;
  begin: (index: number) => Promise<Locator>;
}> {
  const cells = sources.map((source, i) => ({
    id: `cell-${i}`, cell_type: 'code', execution_count: null, metadata: {}, outputs: [], source
  }));
  const kernelspec = { name: 'python3', display_name: 'Python 3' };
  await page.contents.uploadContent(JSON.stringify({ cells, metadata: { kernelspec }, nbformat: 4, nbformat_minor: 5 }), 'text', path);
  await execute(page, 'docmanager:open', { path });
  await kernelReady(page);
  const cell = (index: number): Locator => page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell').nth(index);
  return {
    cell,
    begin: async index => {
      await page.notebook.selectCells(index);
      await page.keyboard.press('Control+Enter');
      return cell(index).locator('.rr-view');
    }
  };
}

const line = (view: Locator): Locator => view.locator('.rr-prompt-input');

viewTest('debugger prompts are answered for one rank or all ranks', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('debugger', 4);
  [0, 1, 2].forEach(rank => record.print(rank, STOPPED));
  record.save('running', { prompts: [0, 1, 2].map(rank => command(rank)) });
  const given = await answers(page, 'debugger');
  const view = await openRuns(page, ['debugger']);
  const status = view.locator('.rr-prompt-words');
  await expect(status).toHaveText('ranks 0–2 are in the debugger at cell line 5');
  await expect(view.locator('.rr-prompt-mark')).toHaveText('ranks 0–2 ipdb>');

  // Letters, arrows and Enter go to the line, not to the notebook.
  await line(view).click();
  await page.keyboard.type('p loss');
  await page.keyboard.press('Enter');
  await expect.poll(() => given).toEqual(['p loss → 0:1,1:1,2:1']);
  await expect(line(view)).toHaveValue('');
  await expect(line(view)).toBeFocused();
  await page.keyboard.press('Enter');
  record.save('running', { prompts: [0, 1, 2].map(rank => command(rank, 2)) });
  await expect(status).toHaveText('ranks 0–2 are in the debugger at cell line 5');
  expect(given).toHaveLength(1);

  await view.getByLabel('ranks to answer').selectOption('rank 2');
  // In the notebook, this key would cut the cell.
  await view.getByLabel('ranks to answer').press('x');
  await expect(view.locator('.rr-prompt-mark')).toHaveText('rank 2 ipdb>');
  await line(view).press('ArrowUp');
  await expect(line(view)).toHaveValue('p loss');
  await line(view).press('ArrowDown');
  await expect(line(view)).toHaveValue('');
  await view.getByRole('button', { name: 'Next' }).click();
  await expect.poll(() => given).toEqual(['p loss → 0:1,1:1,2:1', 'n → 2:2']);
  await expect(status).toHaveText('ranks 0–1 are in the debugger at cell line 5');

  // The chosen rank asks again, and the line still has the focus.
  await line(view).focus();
  record.save('running', { prompts: [command(0, 2), command(1, 2), command(2, 3)] });
  await expect(status).toHaveText('ranks 0–2 are in the debugger at cell line 5');
  await expect(view.locator('.rr-prompt-mark')).toHaveText('rank 2 ipdb>');
  await expect(line(view)).toBeFocused();
  record.save('running');
  await expect(view.locator('.rr-prompt')).toBeHidden();
  await expect(view.getByRole('log')).toBeFocused();
  record.save('done');
  await whole(view);
});

viewTest('a refused answer shows the reason; passwords are not displayed', async ({ page }) => {
  const record = new LiveRecord('debugger-late');
  record.print(0, 'here\n');
  const asks = (kind: string, text: string): Json => ({ prompts: [{ rank: 0, number: 1, kind, text, since: 0, place: 'train.py:12' }] });
  record.save('running', asks('input', 'your name? '));
  const given = await answers(page, 'debugger-late', 'this prompt was already answered, or is no longer open');
  const view = await openRuns(page, ['debugger-late']);
  await expect(view.locator('.rr-prompt-words')).toHaveText('rank 0 waits for input at train.py:12');
  await expect(view.getByRole('button', { name: 'Next' })).toBeHidden();
  await line(view).fill('<b>Ada</b>');
  await line(view).press('Enter');
  await expect(view.locator('.rr-prompt').getByRole('alert')).toHaveText(/already answered/);
  expect(given).toEqual(['<b>Ada</b> → 0:1']);
  record.save('running', asks('password', 'Password: '));
  await expect(line(view)).toHaveAttribute('type', 'password');
  record.save('interrupted');
  await whole(view);
  await expect(view.locator('.rr-prompt')).toBeHidden();
});

viewTest('text typed for a closed prompt is not sent to another one', async ({ page }) => {
  const record = new LiveRecord('debugger-gone', 2);
  const asks = (rank: number, text: string): Json => ({ rank, number: 1, kind: 'input', text, since: 0, place: 'cell line 2' });
  record.save('running', { prompts: [asks(0, 'the name of the run? '), asks(1, 'delete checkpoints? ')] });
  const given = await answers(page, 'debugger-gone');
  const view = await openRuns(page, ['debugger-gone']);
  await line(view).click();
  await page.keyboard.type('yes');
  record.save('running', { prompts: [asks(1, 'delete checkpoints? ')] });
  const alert = view.locator('.rr-prompt').getByRole('alert');
  await expect(alert).toHaveText(/^rank 0 no longer asks for this, so it will not be sent/);
  await page.keyboard.press('Enter');
  await expect(line(view)).toHaveValue('yes');
  await page.setViewportSize({ width: 900, height: 600 });
  await picture(page, 'prompt-gone-light');
  await page.theme.setDarkTheme();
  await page.setViewportSize({ width: 400, height: 600 });
  await picture(page, 'prompt-gone-narrow-dark');
  await line(view).fill('');
  await expect(alert).toBeHidden();
  await page.keyboard.type('no');
  await page.keyboard.press('Enter');
  await expect.poll(() => given).toEqual(['no → 1:1']);
  record.save('done');
  await whole(view);
});

viewTest('prompts of 64 ranks share one line, which fits narrow windows', async ({ page }) => {
  const many = new LiveRecord('debugger-many', 64);
  many.print(0, STOPPED);
  many.save('running', { prompts: Array.from({ length: 64 }, (_, rank) => command(rank)) });
  const view = await openRuns(page, ['debugger-many']);
  await expect(view.locator('.rr-prompt-words')).toHaveText('ranks 0–63 are in the debugger at cell line 5');
  await expect(view.getByLabel('ranks to answer').locator('option')).toHaveCount(65);
  many.save('done');
  await whole(view);

  const record = new LiveRecord('debugger-looks', 4);
  record.print(2, STOPPED);
  const places = [
    { ranks: [2], state: 'asks', words: 'is in the debugger at cell line 5', what: 'the debugger at cell line 5' },
    { ranks: [0, 1, 3], state: 'waits', words: 'wait in hvd.allreduce loss (cell line 7)', code: 'hvd.allreduce(loss)' }
  ];
  const text = 'rank 2 is in the debugger at cell line 5; ranks 0–1,3 wait in hvd.allreduce loss (cell line 7) for 12 s';
  record.save('running', { prompts: [command(2), command(3)], hang: { since: 0, text, places } });
  const looks = await openRuns(page, ['debugger-looks']);
  await expect(looks.locator('.rr-prompt')).toBeVisible();
  await line(looks).fill('p loss.item()');
  await page.setViewportSize({ width: 1100, height: 700 });
  await picture(page, 'debugger-wide');
  await page.setViewportSize({ width: 400, height: 800 });
  await expect.poll(() => looks.evaluate(node => node.scrollWidth - node.clientWidth)).toBeLessThanOrEqual(1);
  await picture(page, 'debugger-narrow');
  await page.theme.setDarkTheme();
  await picture(page, 'debugger-narrow-dark');
  await page.setViewportSize({ width: 1100, height: 700 });
  await picture(page, 'debugger-wide-dark');
  record.save('done');
});

// Galata's mock kernels run nothing.
test.describe('with real ranks', () => {
  test.use({ kernels: null });

  test('a rank stops at a breakpoint, is stepped, and continues', async ({ page }) => {
    const sources = [
      '%load_ext rankroom\n%cluster start --ranks 2',
      '%%distributed\ntotal = 20\nbreakpoint()\ntotal += rank\nprint("total", total)',
      '%%distributed\nhalf = rank // 2\n1 / half',
      '%debug --rank 1',
      '%cluster stop'
    ];
    const { cell, begin } = await openCells(page, 'debugger.ipynb', sources);
    await page.notebook.runCell(0);
    await expect(cell(0)).toContainText('ready in');

    const view = await begin(1);
    const status = view.locator('.rr-prompt-words');
    await expect(status).toHaveText('ranks 0–1 are in the debugger at cell line 2');
    await view.getByRole('button', { name: 'Next' }).click();
    await expect(status).toHaveText('ranks 0–1 are in the debugger at cell line 3');
    await line(view).fill('p tot');
    await line(view).press('Tab');
    await expect(line(view)).toHaveValue('p total');
    await expect(line(view)).toBeFocused();
    await line(view).pressSequentially(' * ra');
    await line(view).press('Tab');
    await expect(view.locator('.rr-prompt-possible')).toHaveText('raise  range  rank');
    await picture(page, 'debugger-possible');
    await line(view).fill('p total * 2');
    await expect(view.locator('.rr-prompt-possible')).toBeHidden();
    await line(view).press('Enter');
    await expect.poll(() => rows(view)).toContain('0–1│40');
    await picture(page, 'debugger-real-ranks');
    await view.getByRole('button', { name: 'Continue' }).click();
    await expect(view).toHaveAttribute('data-state', 'done');
    await expect.poll(() => rows(view)).toContain('1│total 21');

    const failed = await begin(2);
    await expect(failed).toHaveAttribute('data-state', 'failed');
    const mortem = await begin(3);
    await expect(mortem.locator('.rr-prompt-words')).toHaveText('rank 1 is in the debugger at cell line 2');
    await line(mortem).fill('p half');
    await line(mortem).press('Enter');
    await expect.poll(() => rows(mortem)).toContain('1│0');
    await line(mortem).fill('q');
    await line(mortem).press('Enter');
    await expect(mortem).toHaveAttribute('data-state', 'done');
    await page.notebook.runCell(4);
    await expect(cell(4)).toContainText('stopped');
  });

  test('JupyterLab’s debugger shows a rank that the prompt can continue', async ({ page }) => {
    const { cell, begin } = await openCells(page, 'panel.ipynb', [
      '%load_ext rankroom\n%cluster start --ranks 2',
      '%ranks debug 1',
      '%%distributed\ndef half(n):\n    m = n // 2\n    return m\n\ntotal = half(10 + rank)\nprint("total", total)',
      '%ranks debug off',
      '%cluster stop'
    ]);
    await page.notebook.runCell(0);
    await expect(cell(0)).toContainText('ready in');
    await page.notebook.runCell(1);
    await expect(cell(1)).toContainText("JupyterLab's debugger shows rank 1 now");
    await page.setViewportSize({ width: 1400, height: 800 });
    await page.debugger.switchOn();
    await page.notebook.waitForCellGutter(2);
    await page.notebook.clickCellGutter(2, 4);
    await page.debugger.waitForBreakPoints();

    const view = await begin(2);
    await page.debugger.waitForCallStack();
    const status = view.locator('.rr-prompt-words');
    await expect(status).toHaveText('rank 1 is in the debugger at cell line 3');
    const stack = await page.debugger.getCallStackPanelLocator();
    await expect(stack).toContainText('half');
    await expect(stack.locator('.jp-DebuggerCallstackFrame')).toHaveCount(2);
    await page.debugger.waitForVariables();
    const variables = await page.debugger.getVariablesPanelLocator();
    await expect(variables).toContainText(/m\s*5\s+n\s*11/);
    // The line of the cell at which the rank has stopped.
    await expect(cell(2).locator('.jp-DebuggerEditor-highlight')).toHaveText('    return m');
    await picture(page, 'debugger-panel');
    await page.theme.setDarkTheme();
    await picture(page, 'debugger-panel-dark');
    await page.theme.setLightTheme();
    await execute(page, 'debugger:stepOut');
    await expect(status).toHaveText('rank 1 is in the debugger at cell line 5');
    await expect(stack.locator('.jp-DebuggerCallstackFrame')).toHaveCount(1);
    await line(view).fill('half(6) * 11');
    await line(view).press('Enter');
    await expect.poll(() => rows(view)).toContain('1│33');
    await view.getByRole('button', { name: 'Continue' }).click();
    await expect(view).toHaveAttribute('data-state', 'done');
    await expect.poll(() => rows(view)).toContain('0–1│total 5');
    await page.debugger.switchOff();
    await page.notebook.runCell(3);
    await expect(cell(3)).toContainText("the notebook's own again");
    await page.notebook.runCell(4);
    await expect(cell(4)).toContainText('stopped');
  });
});
