/** The Ranks sidebar: real ranks on this machine, and made-up clusters at a site. */
import { spawn } from 'node:child_process';
import { join } from 'node:path';

import type { Locator } from '@playwright/test';

import { ALWAYS, expect, kernelReady, picture, rows, saveRuns, test, viewTest, type Page } from './rankroom';
import {
  ASK, card, endAll, execute, labReady, openRanks, python, pythonEnv, ranksOn, removeCluster, runTyped, setWidth,
  writeCluster, writeRemote
} from './sidebar';

// Galata's mock kernels would run nothing.
test.use({ kernels: null });
test.afterEach(() => endAll());

/** Tests in the JupyterLab of the views, in which no sidebar is open. */
const sharedTest = viewTest.extend<{ page: Page }>({
  page: async ({ page }, use) => {
    await use(page);
    await page.sidebar.close('left');
  }
});

const HOSTS = ['nid001234', 'nid001235'];
/** The time for ranks to start, as RANKROOM_START_SECONDS allows. */
const STARTED = { timeout: 120_000 };
const READY = { size: 8, ranks: ranksOn(HOSTS, 4), ready: [0, 1, 2, 3, 4, 5, 6, 7] };

async function openNotebook(page: Page): Promise<void> {
  const path = await saveRuns(page, []);
  await execute(page, 'docmanager:open', { path });
  await kernelReady(page);
}

function codeCells(page: Page): Locator {
  return page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell');
}

/** Open what a summary folds, if an earlier test has not. */
async function unfold(summary: Locator): Promise<void> {
  if (!(await summary.evaluate(node => node.closest('details')!.open))) {
    await summary.click();
  }
}

async function startTwo(panel: Locator, name: string): Promise<Locator> {
  await unfold(panel.getByText('Start ranks…'));
  const form = panel.getByRole('form', { name: 'start ranks' });
  await form.getByLabel('Ranks', { exact: true }).fill('2');
  await unfold(form.getByText('More'));
  await form.getByLabel('Name').fill(name);
  await form.getByRole('button', { name: 'Start ranks' }).click();
  const made = card(panel, name);
  await expect(made).toHaveAttribute('data-state', 'running', STARTED);
  return made;
}

/** Return the pid of a rank, from its tooltip. */
async function pidOf(made: Locator, rank: number): Promise<number> {
  const tip = (await made.getByRole('listitem').nth(rank).getAttribute('title')) ?? '';
  return Number(/pid (\d+)/.exec(tip)?.[1]);
}

async function agree(page: Page, label: string): Promise<void> {
  await page.locator('.jp-Dialog').getByRole('button', { name: label }).click();
}

test('ranks are started by form, used for a cell, and stopped', ALWAYS, async ({ page }) => {
  await page.setViewportSize({ width: 1200, height: 900 });
  // Runs of this cluster only: the golden records would come first, as their ids are not dates.
  await page.route(/rankroom\/runs\?limit/, async route => {
    const all = await route.fetch({ url: route.request().url().replace(/limit=\d+/, 'limit=1000') });
    const { runs } = (await all.json()) as { runs: Array<{ cluster: string }> };
    await route.fulfill({ json: { runs: runs.filter(run => run.cluster === 'two') } });
  });
  const panel = await openRanks(page);
  await expect(panel.getByRole('button', { name: 'Start ranks here' })).toBeVisible();
  await openNotebook(page);
  const two = await startTwo(panel, 'two');
  await expect(panel.locator('.rr-empty')).toBeHidden();
  await expect(two.locator('.rr-card-words')).toHaveText('2 ranks ready');
  await expect(two.locator('.rr-where')).toHaveText('this machine · CPU');
  await expect(page.locator('.rr-status-button')).toHaveText('2 ranks');
  const both = two.getByRole('listitem');
  await expect(both).toHaveCount(2);
  await expect(both.first().locator('.rr-percent')).toHaveText(/^\d+ %$/);
  await expect(both.first().locator('.rr-memory')).toHaveText(/^\d+\.\d MB$/);

  await two.getByRole('button', { name: 'Insert cell' }).click();
  const inserted = codeCells(page).filter({ hasText: 'attach two' });
  await expect(inserted.locator('.cm-line')).toHaveText(['%load_ext rankroom', '%cluster attach two']);
  // The notebook takes the focus shortly after the cell appears.
  await expect(page.locator('.jp-Notebook:focus-within .jp-CodeCell.jp-mod-active')).toContainText('attach two');
  await page.keyboard.press('Shift+Enter');
  await expect(inserted).toContainText('two: 2 ranks on', { timeout: 60_000 });
  await runTyped(page, codeCells(page), ['%%distributed', "print('rank', rank, 'of', size)"]);
  const view = page.locator('.rr-view');
  await expect.poll(async () => (await rows(view)).sort(), { timeout: 60_000 }).toEqual(['0│rank 0 of 2', '1│rank 1 of 2']);
  // The run is in the list, and opens.
  const run = panel.locator('.rr-run-row').first();
  await expect(run).toContainText('2 ranks · done');
  await picture(page, 'sidebar-running');
  const seen = { x: 0, y: 0, width: 900, height: 460 };
  await page.screenshot({ path: join(__dirname, 'test-results', 'pictures', 'sidebar.png'), clip: seen });
  await run.click();
  await expect(page.locator('.rr-view.rr-panel')).toContainText('rank 1 of 2');

  await two.getByRole('button', { name: 'Log' }).click();
  await expect(page.locator('.rr-job-log')).toContainText('controller.log');
  await picture(page, 'sidebar-log');

  await two.getByRole('button', { name: 'Stop…' }).click();
  await expect(page.locator('.jp-Dialog')).toContainText('variables on the ranks are lost');
  await agree(page, 'Stop');
  await expect(panel.locator('.rr-empty')).toBeVisible({ timeout: 60_000 });
  await expect(page.locator('.rr-status-button')).toBeHidden();
});

test('one click starts ranks; windows and reloads show the same state', async ({ page }) => {
  let panel = await openRanks(page);
  const other = (await page.context().newPage()) as Page;
  await other.goto(page.url());
  await other.locator('#jupyterlab-splash').waitFor({ state: 'detached' });
  const otherPanel = await openRanks(other);
  await panel.getByRole('button', { name: 'Start ranks here' }).click();
  const first = panel.locator('.rr-card');
  await expect(first).toHaveAttribute('data-state', 'running', STARTED);
  const name = (await first.getAttribute('data-cluster')) ?? '';
  await expect(card(otherPanel, name)).toHaveAttribute('data-state', 'running');

  // What is done in one window is shown in the other.
  await other.bringToFront();
  const pid = await pidOf(first, 1);
  await card(otherPanel, name).getByRole('button', { name: 'restart rank 1, without its variables' }).click();
  await agree(other, 'Restart');
  await page.bringToFront();
  await expect.poll(() => pidOf(first, 1), STARTED).not.toBe(pid);
  await expect(first.locator('.rr-card-words')).toHaveText('2 ranks ready', STARTED);

  await page.reload();
  await page.locator('#jupyterlab-splash').waitFor({ state: 'detached' });
  panel = await openRanks(page);
  await expect(card(panel, name)).toHaveAttribute('data-state', 'running');
  await card(panel, name).getByRole('button', { name: 'Resize…' }).click();
  await panel.getByLabel('how many ranks').fill('3');
  await panel.getByRole('button', { name: 'Resize', exact: true }).click();
  await agree(page, 'Resize');
  await expect(card(panel, name).locator('.rr-card-words')).toHaveText('3 ranks ready', STARTED);
  await other.bringToFront();
  await expect(card(otherPanel, name).getByRole('listitem')).toHaveCount(3);
  await card(otherPanel, name).getByRole('button', { name: 'Stop…' }).click();
  await agree(other, 'Stop');
  await page.bringToFront();
  await expect(panel.locator('.rr-empty')).toBeVisible({ timeout: 60_000 });
  await other.close();
});

test('dragging a cluster into a notebook inserts a cell that attaches', async ({ page }) => {
  writeRemote('dragged', { state: 'running' }, READY);
  const panel = await openRanks(page);
  await openNotebook(page);
  // The cards of earlier tests disappear, and this one moves up.
  await expect(panel.locator('.rr-card')).toHaveCount(1);
  const from = (await card(panel, 'dragged').locator('.rr-card-head').boundingBox())!;
  const to = (await page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook').boundingBox())!;
  await page.mouse.move(from.x + 60, from.y + 8);
  await page.mouse.down();
  await page.mouse.move(from.x + 90, from.y + 30, { steps: 4 });
  await page.mouse.move(to.x + 200, to.y + 100, { steps: 8 });
  await expect(page.locator('.rr-drag-image')).toBeVisible();
  await page.mouse.up();
  await expect(codeCells(page).filter({ hasText: 'attach dragged' })).toHaveCount(1);
  removeCluster('dragged');
});

sharedTest('a dead rank is named with its signal and can be restarted', ALWAYS, async ({ page }) => {
  const panel = await openRanks(page);
  const made = await startTwo(panel, 'falls');
  process.kill(await pidOf(made, 1), 'SIGKILL');
  await expect(made.locator('.rr-card-words')).toHaveText('1 of 2 ranks ready; rank 1 is down');
  await expect(made.locator('.rr-note').last()).toContainText('SIGKILL');
  await picture(page, 'sidebar-down');
  await made.getByRole('button', { name: 'restart rank 1, without its variables' }).click();
  await expect(made.locator('.rr-card-words')).toHaveText('2 ranks ready', STARTED);
});

sharedTest('menus and commands apply to the clicked cluster or rank', ALWAYS, async ({ page }) => {
  await page.setViewportSize({ width: 1200, height: 900 });
  writeCluster('older', {});
  const panel = await openRanks(page);
  const made = await startTwo(panel, 'clicked');
  const menu = page.locator('.lm-Menu:visible').last();
  const items = menu.locator('.lm-Menu-itemLabel');
  const before = await pidOf(made, 1);

  await made.locator('.rr-rank-row').nth(1).click({ button: 'right' });
  await expect(items.filter({ hasText: /clicked/ })).toHaveText([
    'Insert a Cell That Attaches to the Ranks of clicked', 'Interrupt the Ranks of clicked', 'Restart Rank 1 of clicked…',
    'Stop the Ranks of clicked…', 'Open the Log of clicked'
  ]);
  await picture(page, 'sidebar-menu');
  await items.filter({ hasText: 'Restart Rank 1' }).click();
  await expect(page.locator('.jp-Dialog')).toContainText('Restart rank 1 of clicked?');
  await agree(page, 'Restart');
  await expect.poll(() => pidOf(made, 1), STARTED).not.toBe(before);
  await expect(made.locator('.rr-card-words')).toHaveText('2 ranks ready', STARTED);

  await made.locator('.rr-card-head').click({ button: 'right' });
  await expect(items.filter({ hasText: 'Restart the Ranks of clicked…' })).toBeVisible();
  await page.keyboard.press('Escape');

  await page.getByRole('menuitem', { name: 'Kernel', exact: true }).click();
  await menu.getByText('Ranks', { exact: true }).click();
  await expect(page.locator('.lm-Menu-itemLabel').filter({ hasText: 'Interrupt the Ranks of' })).toBeVisible();
  await picture(page, 'sidebar-kernel-menu');
  await page.keyboard.press('Escape');
  await page.keyboard.press('Escape');

  // By name, as a keyboard shortcut or another extension would.
  const stopped = execute(page, 'rankroom:stop-ranks', { cluster: 'clicked' });
  await agree(page, 'Stop');
  await stopped;
  await expect(made).toBeHidden();
  removeCluster('older');
});

test('a queued job shows its expected start, a running one its time left', async ({ page }) => {
  await page.setViewportSize({ width: 1200, height: 900 });
  const now = Date.now() / 1000;
  const expected = new Date((now + 1800) * 1000);
  writeRemote('waits', { state: 'pending', reason: 'Priority: higher-priority jobs are ahead of it', expected: now + 1800 });
  const panel = await openRanks(page);
  const waits = card(panel, 'waits');
  const clock = await page.evaluate(
    at => new Date(at).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' }),
    expected.getTime()
  );
  await expect(waits.locator('.rr-card-words')).toContainText(`is waiting in the queue (Priority: higher-priority jobs are ahead of it), expected to start`);
  await expect(waits.locator('.rr-card-words')).toContainText(clock);
  await expect(waits.locator('.rr-where')).toHaveText('perlmutter · job 4711 · 2 nodes × 4 GPUs');
  await expect(waits.getByRole('button', { name: 'Cancel job…' })).toBeVisible();
  await expect(waits.getByRole('button', { name: 'Interrupt' })).toBeHidden();
  await expect(page.locator('.rr-status-button')).toHaveText('ranks wait in the queue');

  // The job is running now, for another 119 s.
  writeRemote('waits', { state: 'running', until: Date.now() / 1000 + 119 }, READY);
  await expect(waits).toHaveAttribute('data-state', 'running');
  await expect(waits.locator('.rr-left')).toHaveText(/^(1 min )?\d\d s left$/);
  await expect(page.locator('.rr-status-button')).toHaveText(/^8 ranks · .* s left$/);
  const notice = page.locator('.jp-toast-message, .Toastify__toast').filter({ hasText: 'waits:' });
  await expect(notice.first()).toContainText(/waits: (2 minutes|1 minute) left, then its job ends/);
  await picture(page, 'sidebar-warning');
  removeCluster('waits');
  await expect(waits).toBeHidden();
});

test('questions of ssh appear in every window until one answers', ALWAYS, async ({ page }) => {
  await openRanks(page);
  const other = (await page.context().newPage()) as Page;
  await other.goto(page.url());
  // The process that asks gives up after a while, so open the window before.
  await labReady(other);
  await other.locator('#jupyterlab-splash').waitFor({ state: 'detached' });
  await page.bringToFront();
  const secret = ask('perlmutter.nersc.gov', 'One-time code for user:', 'secret');
  const dialog = page.locator('.jp-Dialog');
  await expect(dialog).toContainText('ssh asks while connecting to perlmutter.nersc.gov');
  await expect(dialog.locator('input')).toHaveAttribute('type', 'password');
  await expect(dialog.locator('input')).toBeFocused();
  await picture(page, 'sidebar-question');
  await other.bringToFront();
  await expect(other.locator('.jp-Dialog')).toContainText('One-time code');
  await other.locator('.jp-Dialog input').fill('123 456');
  await other.keyboard.press('Enter');
  expect(await secret).toBe('told 123 456');
  await page.bringToFront();
  await expect(dialog).toBeHidden();

  const host = "The authenticity of host 'login (10.0.0.2)' can't be established.\nED25519 key fingerprint is SHA256:abc.\nAre you sure you want to continue connecting (yes/no/[fingerprint])?";
  const trusts = ask('login', host, 'plain');
  await expect(dialog).toContainText('Do you trust login?');
  await expect(dialog).toContainText('SHA256:abc');
  await picture(page, 'sidebar-host-key');
  await agree(page, 'Yes, trust it');
  expect(await trusts).toBe('told yes');
  const refuses = ask('login', host, 'plain');
  await agree(page, 'No');
  expect(await refuses).toBe('refused');
  await expect(dialog).toBeHidden();
  await other.close();
});

sharedTest('the start form reports invalid values before starting ranks', ALWAYS, async ({ page }) => {
  await page.setViewportSize({ width: 1200, height: 1000 });
  const panel = await openRanks(page);
  await unfold(panel.getByText('Start ranks…'));
  const form = panel.getByRole('form', { name: 'start ranks' });
  await form.getByLabel('Ranks', { exact: true }).fill('100000');
  await expect(form.locator('.rr-wrong:not([hidden])')).toHaveText(/^must be a number from 1 to \d+ on this machine, not '100000'$/);
  await expect(panel.locator('.rr-card')).toHaveCount(0);
  // By keyboard: if the form moves, as when a line about a busy server appears above it, a click would miss.
  // Retry if JupyterLab takes the focus out of the sidebar, as it may while it is loading.
  const focused = (): Promise<string> => page.evaluate(() => {
    const input = document.activeElement as HTMLInputElement | null;
    return input?.closest('.rr-sidebar') ? input.name : 'elsewhere';
  });
  await expect(async () => {
    await form.getByRole('button', { name: 'Start ranks' }).press('Enter');
    await expect.poll(focused, { timeout: 5000 }).toBe('ranks');
  }).toPass();
  await form.getByLabel('where').selectOption('perlmutter');
  await form.getByLabel('Nodes', { exact: true }).fill('0');
  await form.getByLabel('Time', { exact: true }).fill('tomorrow');
  await expect(form.locator('.rr-wrong:not([hidden])')).toHaveCount(2);
  await picture(page, 'sidebar-form-errors');
  await form.getByLabel('Nodes', { exact: true }).fill('3');
  await form.getByLabel('Time', { exact: true }).fill('00:30:00');
  await form.getByRole('button', { name: 'Show script' }).click();
  await expect(form.locator('.rr-script')).toContainText('#SBATCH --nodes=3');
  await expect(form.locator('.rr-wrong:not([hidden])')).toHaveCount(0);
  expect(await panel.locator('.rr-card').count()).toBe(0);
});

test('every cluster state fits sidebars of any width, light and dark', async ({ page }) => {
  await page.setViewportSize({ width: 1200, height: 1300 });
  const now = Date.now() / 1000;
  writeRemote('pm-waits', { state: 'pending', reason: 'Priority: higher-priority jobs are ahead of it', expected: now + 4000 });
  writeRemote('pm-runs', { state: 'running', until: now + 2500, job: '4710' }, { ...READY, ready: [0, 1, 2, 3, 4, 5, 7], exits: { '6': 'was ended by signal 9 (SIGKILL)' } });
  writeRemote('pm-lost', { state: 'lost', until: now + 400, words: 'the connection to perlmutter.nersc.gov is lost; the ranks go on' });
  writeRemote('pm-ended', { state: 'ended', words: 'the time of job 4709 is over' });
  writeRemote('pm-failed', { state: 'failed', words: 'sbatch: error: invalid account or account/partition combination specified' });
  writeRemote('pm-asks', { state: 'asks', words: 'ssh asks for a one-time code' });
  writeCluster('local-xy', { state: 'failed', size: 2, message: 'every rank has ended' });
  const names = ['pm-waits', 'pm-runs', 'pm-lost', 'pm-ended', 'pm-failed', 'pm-asks', 'local-xy'];
  const panel = await openRanks(page, 250);
  await expect(panel.locator('.rr-card')).toHaveCount(names.length);
  for (const width of [250, 300, 520]) {
    await setWidth(page, width);
    // No part extends beyond the sidebar.
    const wide = (): Promise<string[]> => panel.evaluate(node => {
      const edge = node.getBoundingClientRect().right;
      const parts = [...node.querySelectorAll<HTMLElement>('.rr-card *, .rr-section *')];
      return parts.filter(part => part.offsetParent && part.getBoundingClientRect().right > edge + 1).map(part => part.className);
    });
    await expect.poll(wide).toEqual([]);
    await picture(page, `sidebar-states-${width}`);
  }
  await page.theme.setDarkTheme();
  await picture(page, 'sidebar-states-dark');
  await card(panel, 'local-xy').getByRole('button', { name: 'Remove' }).click();
  await expect(card(panel, 'local-xy')).toBeHidden();
  names.forEach(removeCluster);
});

test('an unresponsive server is reported, and clusters stay listed', async ({ page }) => {
  writeRemote('stays', { state: 'running' }, READY);
  const panel = await openRanks(page);
  await expect(card(panel, 'stays')).toBeVisible();
  await page.route(/rankroom\/(clusters|questions)/, route => route.abort());
  await expect(panel.locator('.rr-trouble')).toContainText('does not respond: retrying');
  await expect(card(panel, 'stays')).toBeVisible();
  await page.unroute(/rankroom\/(clusters|questions)/);
  await expect(panel.locator('.rr-trouble')).toBeHidden({ timeout: 60_000 });
  removeCluster('stays');
});

/** Ask a question as ssh does; return what the process prints about the answer. */
function ask(host: string, text: string, kind: string): Promise<string> {
  const asking = spawn(python(), ['-c', ASK, host, text, kind], { env: pythonEnv() });
  let said = '';
  asking.stdout.on('data', data => (said += String(data)));
  // Not on `exit`, as the output may come later.
  return new Promise(resolve => asking.on('close', () => resolve(said.trim())));
}
