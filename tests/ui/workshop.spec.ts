/** A workshop: the teacher's console with forty seats, and the panel of a learner who has a server of their own. */
import { execFileSync, spawn } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { Locator } from '@playwright/test';

import { ALWAYS, expect, LiveRecord, picture, readRun, saveRuns, test, viewTest, type Page } from './rankroom';
import { freePort, serverCommand } from './server';
import { execute, labReady, python, pythonEnv } from './sidebar';

const SEATS = join(__dirname, '../support/made_up_seats.py');
const COUNT = 40;
/** A folder that learners' accounts can enter; Playwright's own folders may be closed to them. */
let PLACE = '';

test.skip(process.getuid?.() !== 0, 'seats belong to accounts of learners: only root can make some up');
// Galata's mock kernels would run nothing.
test.use({ kernels: null });

let workshops = 0;

test.beforeAll(() => {
  PLACE = mkdtempSync(join(tmpdir(), 'rankroom-workshop-'));
  chmodSync(PLACE, 0o755);
});

function seats(what: string, folder: string, ...more: string[]): void {
  execFileSync(python(), [SEATS, what, folder, ...more], { env: pythonEnv(), timeout: 60_000 });
}

/** Open a workshop with this many learners; return its folder. */
function openWorkshop(count = COUNT): string {
  const folder = join(PLACE, `w${++workshops}`);
  seats('open', folder, String(count));
  return folder;
}

async function openConsole(page: Page, folder: string): Promise<Locator> {
  await labReady(page);
  await execute(page, 'rankroom:workshop-console', folder ? { folder } : {});
  const panel = page.locator('.rr-workshop');
  await panel.and(page.locator('[data-known=true]')).waitFor();
  return panel;
}

function tiles(panel: Locator): Locator {
  return panel.locator('.rr-ws-tile');
}

function tileOf(panel: Locator, user: string): Locator {
  return panel.locator(`.rr-ws-tile[data-user="${user}"]`);
}

function users(panel: Locator): Promise<string[]> {
  return tiles(panel).evaluateAll(nodes => nodes.map(node => (node as HTMLElement).dataset.user ?? ''));
}

viewTest('the console lists forty learners, those who need help first', ALWAYS, async ({ page }) => {
  await page.setViewportSize({ width: 1400, height: 900 });
  const panel = await openConsole(page, openWorkshop());
  await expect(tiles(panel)).toHaveCount(COUNT);
  expect((await users(panel)).slice(0, 8)).toEqual([
    'learner04', 'learner08', 'learner12', 'learner18', 'learner20', 'learner24', 'learner28', 'learner30'
  ]);
  await expect(panel.locator('.rr-ws-chip')).toHaveText([
    '40 learners', '2 hands up', '2 stuck', '2 failed', '1 not heard from', '2 behind', '31 fine'
  ]);
  await expect(panel.locator('.rr-ws-where')).toHaveText('now: 03 Ring all-reduce');
  const first = tileOf(panel, 'learner04');
  await expect(first).toContainText('hand up for 4 min');
  await expect(first).toContainText('03 Ring all-reduce');
  await expect(first).toContainText(/ring\.2: (not yet|passed), \d tr/);
  await expect(first.locator('.rr-ws-hand')).toBeVisible();
  const stuck = tileOf(panel, 'learner12');
  await expect(stuck.locator('.rr-ws-state')).toHaveText('stuck');
  await expect(stuck.locator('.rr-sign')).toHaveText('!');
  await expect(stuck).toContainText('rank 0 waits in dist.all_reduce at cell line 9');
  await expect(tileOf(panel, 'learner24')).toContainText('1 of 2 ranks');
  await expect(tileOf(panel, 'learner28')).toContainText('not heard from for 3 min');
  const silent = tileOf(panel, 'learner32');
  await expect(silent).toContainText('only the name and the hand are shared');
  await expect(silent).not.toContainText(/\bring\b/);
  // The results of the exercise that most learners are at.
  await expect(panel.getByLabel('exercise')).toHaveValue('ring.2');
  const counted = await panel.locator('.rr-ws-count').allTextContents();
  expect(counted.map(Number).reduce((sum, n) => sum + n, 0)).toBe(COUNT);
  await panel.getByLabel('exercise').selectOption('hello.1');
  await expect(panel.locator('.rr-ws-bar[data-kind=passed] .rr-ws-count').nth(1)).toHaveText('1');
  await panel.getByLabel('exercise').selectOption('ring.2');
  await expect(panel.locator('.rr-ws-bar[data-kind=passed] .rr-ws-count').nth(1)).not.toHaveText('1');
  await picture(page, 'workshop-console');
  await page.theme.setDarkTheme();
  await picture(page, 'workshop-console-dark');
  await page.theme.setLightTheme();
});

test('in a narrow window, the console cuts nothing off', async ({ page }) => {
  await page.setViewportSize({ width: 600, height: 900 });
  const panel = await openConsole(page, openWorkshop());
  await expect(tiles(panel)).toHaveCount(COUNT);
  await expect(panel.locator('.rr-ws-aside')).not.toHaveAttribute('open');
  const wide = await panel.evaluate(node => [...node.querySelectorAll('*')].filter(each =>
    each.getBoundingClientRect().right > node.getBoundingClientRect().right + 1
  ).length);
  expect(wide).toBe(0);
  await picture(page, 'workshop-console-narrow');
  await panel.getByText('To all learners').click();
  await expect(panel.getByLabel('message')).toBeVisible();
  await picture(page, 'workshop-console-narrow-open');
});

test('tiles keep their order under the pointer, and rendering stays smooth', async ({ page }) => {
  await page.setViewportSize({ width: 1400, height: 900 });
  const folder = openWorkshop();
  const panel = await openConsole(page, folder);
  await expect(tiles(panel)).toHaveCount(COUNT);
  const before = await users(panel);
  await tileOf(panel, before[2]).hover();
  seats('hand', folder, 'learner40');
  // The change is shown at once, without moving the tile.
  await expect(tileOf(panel, 'learner40')).toHaveAttribute('data-need', 'hand');
  await expect(panel.getByText('Tiles keep their order while you point at a learner.')).toBeVisible();
  expect(await users(panel)).toEqual(before);
  await page.mouse.move(700, 5);
  await expect.poll(async () => (await users(panel)).slice(0, 3)).toEqual(['learner04', 'learner08', 'learner40']);
  // The new hand is counted.
  await expect(panel.locator('.rr-ws-chip').nth(1)).toHaveText('3 hands up');

  // The time between two frames is short enough for the browser to respond at once.
  const gaps = page.evaluate(() => new Promise<number[]>(done => {
    const found: number[] = [];
    let last = performance.now();
    const step = (now: number): void => {
      found.push(now - last);
      last = now;
      if (found.length < 200) {
        requestAnimationFrame(step);
      } else {
        done(found);
      }
    };
    requestAnimationFrame(step);
  }));
  seats('pass', folder, 'learner04');
  const sorted = (await gaps).sort((a, b) => a - b);
  expect(sorted[Math.floor(sorted.length / 2)]).toBeLessThan(50);
  await expect(tileOf(panel, 'learner04')).toContainText('ring.2: passed, 9 tries');
});

test('the console explains missing learners, folders and permissions', async ({ page }) => {
  const folder = openWorkshop(0);
  let panel = await openConsole(page, '');
  await expect(panel.getByText('Which workshop?')).toBeVisible();
  await picture(page, 'workshop-console-which');
  await panel.getByLabel('folder of the workshop').fill(join(PLACE, 'nothing'));
  await panel.getByRole('button', { name: 'Open' }).click();
  await expect(panel.getByRole('alert')).toContainText('there is no workshop in');
  await panel.getByLabel('folder of the workshop').fill(folder);
  // Wait for the response, not only the request: a reload would abort it.
  const saved = page.waitForResponse(response => {
    const request = response.request();
    return request.url().includes('/api/workspaces') && (request.postData() ?? '').includes(folder);
  });
  await page.keyboard.press('Enter');
  await expect(panel.getByText('No learners yet')).toBeVisible();
  await expect(panel.locator('.rr-empty code')).toHaveText(`rankroom workshop join ${folder}`);
  await picture(page, 'workshop-console-empty');
  // The console is restored after a reload.
  await saved;
  await page.reload();
  await page.locator('#jupyterlab-splash').waitFor({ state: 'detached' });
  panel = page.locator('.rr-workshop');
  await expect(panel.getByText('No learners yet')).toBeVisible();
  seats('give', folder);
  await expect(panel.getByRole('alert')).toContainText('who alone sees its learners');
  rmSync(folder, { recursive: true });
  await expect(panel.getByRole('alert')).toContainText('there is no workshop in');
  // Another workshop can be opened.
  await panel.getByLabel('folder of the workshop').fill(openWorkshop(1));
  await page.keyboard.press('Enter');
  await expect(tiles(panel)).toHaveCount(1);
  await expect(panel.getByRole('alert')).toBeHidden();
});

/** A learner's JupyterLab: its process group (the shell and the server), its address, and its folders. */
let learnerServer: { group: number; url: string; copies: string; folder: string } | null = null;

/** Start the learner's JupyterLab as the job of a seat does, unless it is running already. */
async function startLearner(): Promise<NonNullable<typeof learnerServer>> {
  if (!learnerServer) {
    const folder = openWorkshop(0);
    const home = join(PLACE, 'learner');
    const copies = join(home, 'Distributed-training');
    mkdirSync(join(home, 'rankroom'), { recursive: true });
    const { command, url, env } = serverCommand(await freePort(), true);
    const own = {
      HOME: home, RANKROOM_HOME: join(home, 'rankroom', 'home'), RANKROOM_WORKSHOP: folder, JUPYTERLAB_GALATA_ROOT_DIR: copies
    };
    const group = spawn(command, { shell: true, env: { ...env, ...own }, stdio: 'ignore', detached: true }).pid ?? 0;
    learnerServer = { group, url, copies, folder };
    await expect(async () => expect((await fetch(url)).ok).toBe(true)).toPass({ timeout: 120_000 });
  }
  return learnerServer;
}

/** Open the learner's page with a notebook; return it and the panel, which is collapsed at first. */
async function openLearner(page: Page, notebook: string): Promise<{ learner: Page; panel: Locator }> {
  const { url } = await startLearner();
  const learner = (await page.context().newPage()) as Page;
  // JupyterLab asks this once, in a notification that covers what the test looks at.
  await learner.addLocatorHandler(learner.getByText('notified about official Jupyter news'), async () => {
    await learner.getByRole('button', { name: 'No', exact: true }).click();
  });
  await learner.goto(`${url}/tree/${notebook}?reset`);
  await learner.locator('#jupyterlab-splash').waitFor({ state: 'detached' });
  await labReady(learner);
  await learner.locator('.rr-ws-status-hand').waitFor();
  return { learner, panel: learner.locator('.rr-ws-seat') };
}

test('a learner raises a hand, receives messages and stops sharing', ALWAYS, async ({ page }) => {
  const { folder } = await startLearner();
  const record = new LiveRecord('20260514-100000-abcdef');
  record.save('running', { title: 'train(model, batches)' });
  record.print(0, 'from the teacher\n');
  // This run only: the golden records would come first, as their ids are not dates.
  await page.route(/rankroom\/runs\?limit/, route => route.fulfill({ json: { runs: [readRun(record.id)] } }));
  const teacher = await openConsole(page, folder);
  const { learner, panel } = await openLearner(page, '01_hello_ranks.ipynb');
  await execute(learner, 'rankroom:workshop-panel');
  await expect(panel).toContainText('Distributed training');
  await expect(panel.locator('dl')).toContainText('State');
  await expect(panel.locator('dl')).toContainText('no ranks yet');
  const hand = learner.locator('.rr-ws-status-hand');
  await hand.click();
  await expect(hand).toHaveText('hand up');
  await expect(panel).toContainText('Your hand has been up since');
  await page.bringToFront();
  await expect(tiles(teacher)).toHaveCount(1);
  await expect(tiles(teacher)).toHaveAttribute('data-need', 'hand');

  await teacher.getByLabel('message').fill('A break of ten minutes.\nThen ring.2, in pairs.');
  await teacher.getByRole('button', { name: 'Send' }).click();
  await expect(teacher.getByRole('status').filter({ hasText: 'within seconds' })).toBeVisible();
  await teacher.getByText('Timer', { exact: true }).click();
  await teacher.getByLabel('what the time is for').fill('Break');
  await teacher.getByRole('button', { name: 'Start timer' }).click();
  await expect(teacher.locator('.rr-ws-timer')).toHaveText(/^Break: (10:00|9:\d\d) left$/);
  // A cell of the teacher's own notebook.
  const path = await saveRuns(page, []);
  await execute(page, 'docmanager:open', { path });
  const cell = page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .cm-content').first();
  await cell.click();
  await page.keyboard.type('print("inserted")');
  await execute(page, 'rankroom:workshop-console', { folder });
  await teacher.getByText('Cell', { exact: true }).click();
  await teacher.getByRole('button', { name: 'Take the active cell' }).click();
  await expect(teacher.getByLabel('cell', { exact: true })).toHaveValue('print("inserted")');
  await teacher.getByLabel('what the cell does').fill('A line to try');
  await teacher.getByRole('button', { name: 'Offer the cell' }).click();
  await teacher.getByText('Run', { exact: true }).click();
  await teacher.getByLabel('run', { exact: true }).selectOption(record.id);
  await teacher.getByRole('button', { name: 'Show the run' }).click();

  await learner.bringToFront();
  const messages = panel.locator('.rr-ws-message');
  await expect(messages).toHaveCount(3);
  await expect(messages.filter({ hasText: 'A break' })).toContainText('Then ring.2');
  await expect(panel.locator('.rr-ws-timer')).toHaveText(/^Break: \d+:\d\d left$/);
  await picture(learner, 'workshop-panel');
  await messages.filter({ hasText: 'A line to try' }).getByRole('button', { name: 'Insert below' }).click();
  const inserted = learner.locator('.jp-CodeCell').filter({ hasText: 'print("inserted")' });
  await expect(inserted).toBeVisible();
  await expect(inserted.locator('.jp-InputPrompt')).toHaveText('[ ]:');
  await messages.filter({ hasText: 'A run to look at' }).getByRole('button', { name: 'Open' }).click();
  const shown = learner.locator('.rr-shown');
  await expect(shown).toContainText('from the teacher');
  record.print(1, 'and live\n');
  await expect(shown).toContainText('and live');
  await expect(shown.getByRole('button', { name: 'Interrupt' })).toBeHidden();
  record.save('done', { title: 'train(model, batches)' });
  await picture(learner, 'workshop-shown-run');

  await panel.getByRole('button', { name: 'Stop sharing' }).click();
  await expect(panel).toContainText('Your teacher sees your name and your hand, and nothing else of you.');
  await expect(panel.locator('dt')).toHaveText(['Name', 'Hand']);
  await page.bringToFront();
  await expect(tiles(teacher)).toContainText('only the name and the hand are shared');
  await teacher.getByText('Message', { exact: true }).click();
  await teacher.getByLabel('message').fill('<b>bold</b>');
  await teacher.getByRole('button', { name: 'Send' }).click();
  await learner.bringToFront();
  // Shown as text, whatever it contains.
  await expect(messages.first()).toContainText('<b>bold</b>');
  await panel.getByRole('button', { name: 'Share my progress' }).click();
  await panel.getByRole('button', { name: 'Lower your hand' }).click();
  await execute(learner, 'apputils:change-theme', { theme: 'JupyterLab Dark' });
  await learner.locator('#jupyterlab-splash').waitFor({ state: 'detached' });
  await picture(learner, 'workshop-panel-dark');
  await execute(learner, 'apputils:change-theme', { theme: 'JupyterLab Light' });
});

test('offers to catch up or reset take effect when the learner accepts', async ({ page }) => {
  const { folder, copies } = await startLearner();
  const teacher = await openConsole(page, folder);
  const { learner, panel } = await openLearner(page, '01_hello_ranks.ipynb');
  await page.bringToFront();
  await teacher.getByLabel('exercise', { exact: true }).selectOption('hello.2');
  await expect(teacher.getByLabel('exercise', { exact: true })).toHaveValue('hello.2');
  await tiles(teacher).getByRole('button', { name: 'Offer to catch up' }).click();
  await expect(tiles(teacher)).toContainText('offered to catch up at');
  await learner.bringToFront();
  // The panel is hidden, so a notification announces the offer, and opens it.
  const toast = learner.locator('.Toastify__toast').filter({ hasText: 'Your teacher offers to let you catch up' });
  await expect(panel).toBeHidden();
  await toast.getByRole('button', { name: 'Show' }).click();
  await expect(panel).toBeVisible();
  const catchUp = panel.locator('.rr-ws-offer[data-offer="catch up"]');
  await expect(catchUp).toContainText('the solutions of 01 Hello, ranks up to hello.2');
  await catchUp.getByRole('button', { name: 'Do it' }).click();
  const cell = learner.locator('.jp-CodeCell').filter({ hasText: '--catch-up hello.2' });
  await expect(cell).toContainText('hello.2: solved on your ranks', { timeout: 180_000 });
  await expect(cell).not.toContainText('hello.3: solved');
  await expect(catchUp).toBeHidden();
  // The teacher sees that there are ranks now.
  await page.bringToFront();
  await expect(tiles(teacher)).toContainText('2 of 2 ranks');
  await expect(tiles(teacher)).toContainText('01 Hello, ranks');
  await tiles(teacher).getByRole('button', { name: 'Offer a reset' }).click();

  await learner.bringToFront();
  const reset = panel.locator('.rr-ws-offer[data-offer="reset"]');
  await reset.getByRole('button', { name: 'Do it' }).click();
  await expect.poll(() => readdirSync(copies).filter(name => name.includes('before reset'))).toHaveLength(1);
  await expect(reset).toBeHidden();
  await expect(learner.locator('.jp-NotebookPanel:not(.lm-mod-hidden)')).toBeVisible();
  await expect(learner.locator('.jp-CodeCell').filter({ hasText: '--catch-up' })).toHaveCount(0);
  await picture(learner, 'workshop-reset');
  // The course's ranks were restarted.
  await expect(panel.locator('dl')).toContainText('2 of 2 ranks', { timeout: 180_000 });
});

// Not at the end of a test, when its page still talks to the server.
test.afterAll(async () => {
  const group = learnerServer?.group;
  if (group) {
    const source = 'from rankroom.cluster import actions, cluster_status\n'
      + 'for card in cluster_status.all_clusters(): actions.stop(card.name)';
    const env = { ...pythonEnv(), RANKROOM_HOME: join(PLACE, 'learner', 'rankroom', 'home') };
    execFileSync(python(), ['-c', source], { env, timeout: 180_000 });
    process.kill(-group, 'SIGTERM');
    await expect(() => expect(() => process.kill(-group, 0)).toThrow())
      .toPass({ timeout: 20_000 })
      .catch(() => process.kill(-group, 'SIGKILL'));
  }
  rmSync(PLACE, { recursive: true, force: true });
});
