/** Helpers for the tests of the sidebar: made-up clusters and questions on the server's disk. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';

import type { Locator } from '@playwright/test';

import { expect, still, type Json, type Page } from './rankroom';

const HOME = join(process.env.RANKROOM_UI_HOME ?? '', 'home');

interface Lab {
  jupyterapp: {
    restored: Promise<unknown>;
    commands: { execute(id: string, args?: Json): Promise<unknown>; hasCommand(id: string): boolean } };
}

export async function execute(page: Page, command: string, args: Json = {}): Promise<void> {
  await page.evaluate(async ([command, args]) => {
    await (window as unknown as Lab).jupyterapp.commands.execute(command as string, args as Json);
  }, [command, args] as const);
}

/** Wait until JupyterLab and the sidebar's plugin are loaded, and the previous layout is restored. */
export async function labReady(page: Page): Promise<void> {
  await page.waitForFunction(() => (window as unknown as Partial<Lab>).jupyterapp?.commands.hasCommand('rankroom:show-ranks'));
  await page.evaluate(() => (window as unknown as Lab).jupyterapp.restored.then(() => null));
}

/** Open the sidebar, and wait until it shows what the server has sent. */
export async function openRanks(page: Page, width = 300): Promise<Locator> {
  // A layout that is restored later might hide it.
  await labReady(page);
  await execute(page, 'rankroom:show-ranks');
  const panel = page.locator('.rr-sidebar');
  await panel.and(page.locator('[data-known=true]')).waitFor();
  await setWidth(page, width);
  return panel;
}

/** Drag the sidebar's edge until the sidebar has this width. */
export async function setWidth(page: Page, width: number): Promise<void> {
  const handle = page.locator('#jp-main-split-panel > .lm-SplitPanel-handle:not(.lm-mod-hidden)').first();
  const [box, at] = await still(page, async () => [
    (await page.locator('#jp-left-stack').boundingBox())!,
    (await handle.boundingBox())!
  ]);
  const y = at.y + 200;
  await page.mouse.move(at.x + at.width / 2, y);
  await page.mouse.down();
  await page.mouse.move(at.x + at.width / 2 + width - box.width, y, { steps: 5 });
  await page.mouse.up();
}

/** Type into the last of these cells and run it; wait until the text is there and the kernel has received it. */
export async function runTyped(page: Page, cells: Locator, lines: string[]): Promise<void> {
  // By its index, as it is no longer the last one when it runs.
  const cell = cells.nth((await cells.count()) - 1);
  const editor = cell.locator('.cm-content');
  await editor.click();
  await expect(editor).toBeFocused();
  await page.keyboard.type(lines.join('\n'));
  await expect(cell.locator('.cm-line')).toHaveText(lines);
  await page.keyboard.press('Shift+Enter');
  await expect(cell.locator('.jp-InputPrompt')).toHaveText(/^\[(\*|\d+)\]:$/);
}

export function card(panel: Locator, name: string): Locator {
  return panel.locator(`.rr-card[data-cluster="${name}"]`);
}

/** Write the file of a made-up cluster, as a supervisor would; the cluster never starts. */
export function writeCluster(name: string, fields: Json): void {
  const folder = join(HOME, 'clusters', name);
  mkdirSync(folder, { recursive: true });
  // Created in the future, so that its missing supervisor is not noticed.
  const info = { name, size: 0, state: 'starting', created: Date.now() / 1000 + 86_400, host: hostname(), ...fields };
  writeFileSync(join(folder, 'cluster.json.new'), JSON.stringify(info));
  renameSync(join(folder, 'cluster.json.new'), join(folder, 'cluster.json'));
}

export function writeRemote(name: string, remote: Json, fields: Json = {}): void {
  const site = { site: 'perlmutter', login: 'perlmutter.nersc.gov', job: '4711', nodes: 2, gpus_per_node: 4, ranks_per_node: 4 };
  writeCluster(name, { ...fields, remote: { ...site, ...remote } });
}

/** Return ranks with GPUs on these hosts. */
export function ranksOn(hosts: string[], perHost: number): Json[] {
  return Array.from({ length: hosts.length * perHost }, (_, rank) => ({
    rank, local_rank: rank % perHost, host: hosts[Math.floor(rank / perHost)], pid: 1000 + rank, device: `cuda:${rank % perHost}`
  }));
}

export function removeCluster(name: string): void {
  rmSync(join(HOME, 'clusters', name), { recursive: true, force: true });
}

/** A Python script that asks a question as ssh does, and prints the answer. */
export const ASK = `
import sys
from rankroom.ssh import questions
said = questions.ask(sys.argv[1], sys.argv[2], sys.argv[3] == "secret", 120)
print("refused" if said is None else "told " + said)
`;

export function python(): string {
  return process.env.RANKROOM_PYTHON ?? join(__dirname, '../../.venv/bin/python');
}

export function pythonEnv(): NodeJS.ProcessEnv {
  return { ...process.env, RANKROOM_HOME: HOME, PYTHONPATH: join(__dirname, '../../lab') };
}

/** Stop all clusters that a test has left. */
export function endAll(): void {
  // Made-up clusters have no job to stop.
  const source = `
import shutil
from rankroom.cluster import actions, cluster_status
from rankroom.record.cluster_file import ClusterPaths
for card in cluster_status.all_clusters():
    if card.is_remote:
        shutil.rmtree(ClusterPaths(card.name).folder)
    else:
        actions.stop(card.name)
`;
  execFileSync(python(), ['-c', source], { env: pythonEnv(), timeout: 180_000 });
}
