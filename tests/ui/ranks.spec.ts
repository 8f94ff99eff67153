/** Real ranks behind a real notebook: what a user types, and what is then on the screen. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

import type { Locator } from '@playwright/test';

import { expect, kernelReady, rows, test, whole, type Page } from './rankroom';

const TRAINING = `%%distributed
import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits

hvd.init()
torch.manual_seed(0)
x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
x, y = x[rank::size].float() / 16, y[rank::size]
print(f"rank {rank} trains on {len(x)} images")
model = torch.nn.Linear(64, 10)
sgd = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
for epoch in range(1, 6):
    for i in range(0, 896, 64):
        sgd.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[i:i + 64]), y[i:i + 64])
        loss.backward()
        sgd.step()
    print(f"epoch {epoch}  loss {hvd.allreduce(loss.detach()):.3f}")
right = (model(x).argmax(1) == y).float().mean()
f"accuracy {hvd.allreduce(right):.3f}"`;

// Rank 1 is late by more than a busy machine can delay rank 0.
const STRAGGLER = `%%distributed
import time
import torch, horovod.torch as hvd

hvd.init()
for step in range(40):
    with span("load"):
        if rank == 1:
            time.sleep(0.1)
    hvd.allreduce(torch.tensor([float(step)]), name="loss")`;

// Trains a network, and reports its loss, accuracy and learning rate in each step.
const REPORTING = `%%distributed
import rankroom
import torch
import horovod.torch as hvd
from sklearn.datasets import load_digits

hvd.init()
torch.manual_seed(0)
x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
x, y = x[rank::size].float() / 16, y[rank::size]
model = torch.nn.Linear(64, 10)
sgd = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
decay = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.99)
for step in range(200):
    batch = torch.randint(len(x), (64,))
    sgd.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
    loss.backward()
    sgd.step()
    decay.step()
    right = (model(x).argmax(1) == y).float().mean()
    rankroom.log(loss=loss.item(), accuracy=right.item(), lr=decay.get_last_lr()[0], step=step)`;

// Galata's mock kernels cannot be interrupted.
test.use({ kernels: null });

interface Lab {
  jupyterapp: { commands: { execute(id: string, args: { path: string }): Promise<unknown> } };
}

/** Imports that are slow only the first time: a screenshot should show the training instead. */
const WARM = '%%distributed\nimport horovod.torch, torch, torch.nn, numpy\nhorovod.torch.init()';

let notebooks = 0;

/** Open a notebook with these cells after a first one that starts two ranks, and run the first one. */
async function notebookWith(page: Page, ...sources: string[]): Promise<void> {
  const all = ['%load_ext rankroom\n%cluster start --ranks 2', ...sources, '%cluster stop'];
  const cells = all.map((source, i) => ({
    id: `cell-${i}`, cell_type: 'code', execution_count: null, metadata: {}, outputs: [], source
  }));
  const kernelspec = { name: 'python3', display_name: 'Python 3' };
  const notebook = { cells, metadata: { kernelspec }, nbformat: 4, nbformat_minor: 5 };
  const path = `ranks-${++notebooks}.ipynb`;
  await page.contents.uploadContent(JSON.stringify(notebook), 'text', path);
  await page.evaluate(async path => {
    await (window as unknown as Lab).jupyterapp.commands.execute('docmanager:open', { path });
  }, path);
  await kernelReady(page);
  await page.notebook.runCell(0);
  await expect(cell(page, 0)).toContainText('ready in');
}

function cell(page: Page, index: number): Locator {
  return page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell').nth(index);
}

/** Run a cell without waiting for its end. */
async function begin(page: Page, index: number): Promise<Locator> {
  await page.notebook.selectCells(index);
  await page.keyboard.press('Control+Enter');
  return cell(page, index).locator('.rr-view');
}

async function stopRanks(page: Page): Promise<void> {
  const last = (await page.notebook.getCellCount()) - 1;
  await page.notebook.runCell(last);
  await expect(cell(page, last)).toContainText('stopped');
}

test('training on two ranks, as the README shows it', async ({ page }) => {
  await page.setViewportSize({ width: 1000, height: 860 });
  await notebookWith(page, TRAINING, WARM);
  await page.notebook.runCell(2);
  // The test's JupyterLab uses fonts that few machines have.
  await page.addStyleTag({ content: ":root { --jp-code-font-family: 'DejaVu Sans Mono', monospace; }" });
  await page.notebook.runCell(1);
  const view = cell(page, 1).locator('.rr-view');
  await whole(view);
  await expect(view.locator('.rr-words')).toContainText('2 ranks · done in');
  const seen = await rows(view);
  expect(seen.slice(0, 2).sort()).toEqual(['0│rank 0 trains on 899 images', '1│rank 1 trains on 898 images']);
  expect(seen.filter(row => /^0–1│epoch \d {2}loss \d\.\d{3}$/.test(row))).toHaveLength(5);
  await expect(view.locator('.rr-displays')).toContainText(/ranks 0–1:'accuracy 0\.9\d\d'/);
  await page.notebook.selectCells(0);
  await cell(page, 1).screenshot({ path: join(__dirname, 'test-results', 'pictures', 'run-view.png') });
  await stopRanks(page);
});

test('lines appear live, and reloading the page during a run loses none', async ({ page }) => {
  // The run continues while the page is loaded, but does not end before the test has seen it running.
  const seen = join(process.env.RANKROOM_UI_HOME ?? '', 'reloaded');
  const steps = `%%distributed
import os, time
for i in range(60):
    while i == 40 and not os.path.exists(${JSON.stringify(seen)}):
        time.sleep(0.1)
    print('step', i)
    time.sleep(0.2)`;
  await notebookWith(page, steps);
  let view = await begin(page, 1);
  await expect(view).toContainText('running');
  await expect(view).toContainText('step 3');
  await page.notebook.save();
  await page.reload();
  view = page.locator('.rr-view').first();
  await expect(view).toContainText('running');
  writeFileSync(seen, '');
  await expect(view).toContainText('done in');
  await whole(view);
  const last = await rows(view);
  expect(last[last.length - 1]).toBe('0–1│step 59');
  await expect(view.locator('.rr-words')).toContainText('120 lines');
  await kernelReady(page);
  await stopRanks(page);
});

test('the stop button ends the cell on both ranks', async ({ page }) => {
  await notebookWith(page, '%%distributed\nimport time\ntime.sleep(120)');
  const view = await begin(page, 1);
  await expect(view).toContainText('running');
  await page.getByRole('button', { name: /Interrupt the kernel/ }).first().click();
  await expect(view).toContainText('interrupted');
  await expect(cell(page, 1)).toContainText("the ranks' variables are kept");
  await stopRanks(page);
});

test('a hang is explained, and stacks, release and interrupt work', async ({ page }) => {
  const hang = `%%distributed
import time
import torch
import torch.distributed as dist

dist.init_process_group()
kept = 40 + rank
if rank == 0:
    dist.all_reduce(torch.ones(3))
else:
    time.sleep(600)`;
  await notebookWith(page, hang, '%%distributed\nkept + 1');
  const view = await begin(page, 1);
  // Explained within seconds of the hang; before that, torch has to be imported.
  await expect(view.getByRole('alert')).toContainText(/rank 0 waits in .*reduce.*rank 1/i, { timeout: 60_000 });
  const places = view.locator('.rr-places li');
  await expect(places.first()).toContainText('dist.all_reduce(torch.ones(3))');
  await expect(places.last()).toContainText('time.sleep(600)');
  const step = (name: string): Locator => view.locator('.rr-hang').getByRole('button', { name });
  await expect(step('Restart rank 1')).toBeVisible();

  await step('Show all stacks').click();
  const stacks = view.getByRole('region', { name: 'stacks of all ranks' });
  await expect(stacks).toContainText('all_reduce(torch.ones(3))');
  await expect(stacks).toContainText('time.sleep(600)');

  await step('Release').click();
  await expect(view.locator('.rr-said')).toContainText('released');
  await expect(view.locator('.rr-cause')).toContainText('rank 0');
  // Rank 1 continues to sleep, as it does not wait in a collective.
  await view.getByRole('button', { name: 'Interrupt' }).first().click();
  await whole(view);
  await expect(view.locator('.rr-hang')).toBeHidden();
  // A cell that is sent before the kernel has reported the failure of this one would be dropped.
  await expect(cell(page, 1)).toContainText("the ranks' variables are kept");
  await page.notebook.runCell(2);
  await expect(cell(page, 2).locator('.rr-displays')).toHaveText(/rank 0:41.*rank 1:42/s);
  await stopRanks(page);
});

test('the first failure is shown as the cause, other ranks as released', async ({ page }) => {
  const failing = `%%distributed
import torch
import torch.distributed as dist

def train(batch):
    if rank == 1:
        raise ValueError("bad batch")
    dist.all_reduce(batch)

dist.init_process_group()
train(torch.ones(3))`;
  await notebookWith(page, failing);
  const view = await begin(page, 1);
  await expect(view.locator('.rr-cause')).toHaveText('rank 1 · ValueError: bad batch · cell line 6', { timeout: 60_000 });
  await expect(view.locator('.rr-own').first()).toHaveText(/^----> 6 +raise ValueError\("bad batch"\)$/);
  await expect(view.locator('.rr-other summary')).toHaveText(/^rank 0 · released from .*all_?reduce.* · cell line 7$/);
  await whole(view);
  await stopRanks(page);
});

test('a straggler is named in the summary, timeline and profile', async ({ page }) => {
  await notebookWith(page, STRAGGLER, STRAGGLER);
  await page.notebook.runCell(1);
  // The second run is without the time of imports and of the first init().
  await page.notebook.runCell(2);
  const view = cell(page, 2).locator('.rr-view');
  await whole(view);
  await expect(view.locator('.rr-words')).toContainText('slowest: rank 1');
  await view.getByRole('tab', { name: 'Timeline' }).click();
  const body = view.locator('.rr-tl-body');
  await expect(body).toHaveAttribute('aria-label', /steps \d+–40: rank 1 arrives last in .* of \d+ allreduces/);
  await view.screenshot({ path: join(__dirname, 'test-results', 'pictures', 'timeline.png') });
  await view.getByRole('tab', { name: 'Profile' }).click();
  await expect(view.locator('.rr-diagnosis')).toContainText(/steps \d+–40: rank 1 arrives last in .* of \d+ allreduces and costs \d+ % of a step/);
  await view.screenshot({ path: join(__dirname, 'test-results', 'pictures', 'profile.png') });
  await page.notebook.runCell(3);
});

test('metrics that ranks report are plotted', async ({ page }) => {
  await page.setViewportSize({ width: 1000, height: 1000 });
  await notebookWith(page, REPORTING, WARM);
  await page.notebook.runCell(2);
  await page.notebook.runCell(1);
  const view = cell(page, 1).locator('.rr-view');
  await whole(view);
  await view.getByRole('tab', { name: 'Metrics' }).click();
  const tab = view.locator('.rr-metrics');
  await expect(tab.locator('.rr-mt-title > b')).toHaveText(['loss', 'accuracy', 'lr']);
  // Plots are drawn only in view.
  await tab.locator('.rr-mt-plot').last().scrollIntoViewIfNeeded();
  await expect(tab).toHaveAttribute('data-ready', 'true');
  await expect(tab.locator('.rr-mt-plot').first()).toHaveAttribute('aria-label', /^loss, from step 0 to step 199; last: 0\.\d+/);
  await tab.getByRole('slider', { name: 'smoothing' }).fill('0.8');
  await view.screenshot({ path: join(__dirname, 'test-results', 'pictures', 'metrics.png') });
  await stopRanks(page);
});
