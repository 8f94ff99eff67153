/** Helpers for the browser tests: records on the server's disk, notebooks that hold runs. */
import { appendFileSync, mkdirSync, readFileSync, renameSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';

import { expect, galata, test as base, type IJupyterLabPageFixture } from '@jupyterlab/galata';
import * as utils from '@jupyterlab/galata/lib/utils';
import type { Locator, Page as AnyPage } from '@playwright/test';

export { expect };

type Wait = (condition: () => Promise<boolean> | boolean, timeout?: number) => Promise<void>;
// Galata gives a page 15 s to start, which is too short on a busy machine.
const galataUtils: { waitForCondition: Wait } = utils;
const wait: Wait = galataUtils.waitForCondition;
galataUtils.waitForCondition = (condition, timeout = 90_000) => wait(condition, timeout);

export type Page = IJupyterLabPageFixture;

const HOME = join(process.env.RANKROOM_UI_HOME ?? '', 'home', 'runs');
const MIME = 'application/vnd.rankroom.run+json';

const THEMES = '@jupyterlab/apputils-extension:themes';

const SETTINGS = {
  ...galata.DEFAULT_SETTINGS,
  [THEMES]: { ...(galata.DEFAULT_SETTINGS[THEMES] as Json), overrides: {} }
};

async function ready(page: AnyPage, lab: Pick<Page, 'sidebar'>): Promise<void> {
  await page.locator('#jupyterlab-splash').waitFor({ state: 'detached' });
  await lab.sidebar.close();
}

/** Tests in a JupyterLab with its own fonts, and with the sidebars closed, so that the notebook has the whole width. */
export const test = base.extend({
  mockSettings: SETTINGS,
  waitForApplication: async ({ baseURL }, use) => {
    void baseURL;
    await use(ready);
  }
});

interface Lab {
  jupyterapp: {
    commands: { execute(id: string, args: Json): Promise<unknown> };
    shell: { widgets(area: string): Iterable<{ dispose(): void }> };
    serviceManager: { sessions: { shutdownAll(): Promise<void> } };
  };
}

/**
 * Tests of views in one JupyterLab that stays open, as loading it takes longer than most of them.
 *
 * A test that removes a route must use `test`, with a page of its own: in this page, routes that
 * are added later have no effect.
 */
export const viewTest = test.extend<{ page: Page }, { lab: Page }>({
  lab: [
    async ({ browser }, use, { project }) => {
      const { baseURL, viewport } = project.use;
      const context = await browser.newContext({ baseURL, viewport });
      const page = await context.newPage();
      const lab = await galata.initTestPage(
        '/lab', false, baseURL ?? '', true, SETTINGS, true, true, page, null, null, '', ready
      );
      await lab.goto('?reset');
      await use(lab);
      await context.close();
    },
    { scope: 'worker' }
  ],
  page: async ({ lab, viewport }, use) => {
    await use(lab);
    await lab.evaluate(async () => {
      const { shell, serviceManager } = (window as unknown as Lab).jupyterapp;
      [...shell.widgets('main')].forEach(widget => widget.dispose()); // without asking whether to save
      await serviceManager.sessions.shutdownAll();
    });
    if ((await lab.theme.getTheme()) !== 'JupyterLab Light') {
      await lab.theme.setLightTheme();
    }
    await lab.mouse.move(0, 0);
    await lab.setViewportSize(viewport ?? { width: 1100, height: 800 });
  }
});

/** Marks the tests that `make test` runs as well: one for each feature of the extension. */
export const ALWAYS = { tag: '@always' };

export type Json = { [key: string]: unknown };

export function readRun(id: string): Json {
  return JSON.parse(readFileSync(join(HOME, id, 'run.json'), 'utf8')) as Json;
}

/** A record that a test writes piece by piece, as a supervisor would. */
export class LiveRecord {
  private seq = new Map<number, number>();
  private names = new Map<number, string[]>();

  constructor(
    readonly id: string,
    private size = 2
  ) {
    mkdirSync(join(HOME, id), { recursive: true });
    writeFileSync(join(HOME, id, 'source.py'), 'print("live")\n');
    writeFileSync(join(HOME, id, 'events.jsonl'), '');
    this.save('running');
  }

  save(state: string, more: Json = {}): void {
    const start = Date.now() * 1000;
    const ranks = Array.from({ length: this.size }, (_, rank) => ({
      rank, host: 'here', pid: 1, device: 'cpu', local_rank: rank
    }));
    const run = {
      version: 1, id: this.id, state, start, cluster: 'local', size: this.size, ranks,
      end: state === 'running' ? null : start + 1_000_000,
      // This process is the record's writer, and it is alive.
      owner: { host: hostname(), pid: process.pid },
      ...more
    };
    // Atomically, as a supervisor does, so that a reader never sees half of the file.
    const file = join(HOME, this.id, 'run.json');
    writeFileSync(`${file}.new`, JSON.stringify(run));
    renameSync(`${file}.new`, file);
  }

  /** Append an event. */
  add(kind: string, rank: number, fields: Json): void {
    const seq = this.seq.get(rank) ?? 0;
    this.seq.set(rank, seq + 1);
    this.append(`${JSON.stringify({ kind, rank, seq, t: 1000 * seq, ...fields })}\n`);
  }

  print(rank: number, text: string, stream = 'stdout'): void {
    this.add('log', rank, { stream, text });
  }

  /** Report values of a metric, which are one step and `every` microseconds apart. */
  report(rank: number, name: string, values: ReadonlyArray<number | string>, first = 0, every = 10_000): void {
    const names = this.names.get(rank) ?? [];
    const isNew = !names.includes(name);
    const number = isNew ? names.push(name) - 1 : names.indexOf(name);
    this.names.set(rank, names);
    this.add('metrics', rank, {
      t: every * (first + values.length),
      ...(isNew ? { from: number, define: [name] } : {}),
      name: values.map(() => number),
      step: values.map((_, i) => first + i),
      at: values.map((_, i) => (i ? every : every * first)),
      value: values
    });
  }

  /** Make the record look as if it was written last this many seconds ago. */
  age(seconds: number): void {
    const then = Date.now() / 1000 - seconds;
    utimesSync(join(HOME, this.id, 'events.jsonl'), then, then);
  }

  append(text: string): void {
    appendFileSync(join(HOME, this.id, 'events.jsonl'), text);
  }

  /** Write an overview of the events so far, as a supervisor does when a run ends. */
  addOverview(spans: number, lanes: Json[]): void {
    const read = statSync(join(HOME, this.id, 'events.jsonl')).size;
    const lines = [{ rules: 2, read, spans, dropped: {} }, ...lanes].map(line => `${JSON.stringify(line)}\n`);
    writeFileSync(join(HOME, this.id, 'overview.jsonl'), lines.join(''));
  }
}

let notebooks = 0;

/** Open a notebook with a cell for each of these runs, as saved after they ran; return their views. */
export async function openRuns(page: Page, runs: Array<string | Json>): Promise<Locator> {
  const path = await saveRuns(page, runs);
  await page.evaluate(async path => {
    await (window as unknown as Lab).jupyterapp.commands.execute('docmanager:open', { path });
  }, path);
  return page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .rr-view');
}

/** Save a notebook with a cell for each of these runs; return its path. */
export async function saveRuns(page: Page, runs: Array<string | Json>): Promise<string> {
  const cells = runs.map((run, i) => {
    const info = typeof run === 'string' ? readRun(run) : run;
    const data = {
      [MIME]: { version: 1, run: info },
      'text/html': `<div>static summary of <b>${String(info.id)}</b></div>`,
      'text/plain': `summary of ${String(info.id)}`
    };
    return {
      id: `cell-${i}`, cell_type: 'code', execution_count: i + 1, metadata: {},
      source: `%%distributed\n# ${String(info.id)}`,
      outputs: [{ output_type: 'display_data', metadata: {}, data }]
    };
  });
  const kernelspec = { name: 'python3', display_name: 'Python 3' };
  const notebook = { cells, metadata: { kernelspec }, nbformat: 4, nbformat_minor: 5 };
  const path = `runs-${++notebooks}-${Date.now()}.ipynb`;
  await page.contents.uploadContent(JSON.stringify(notebook), 'text', path);
  return path;
}

/** Wait until the view has read the whole record and painted it. */
export async function whole(view: Locator): Promise<void> {
  await expect(view).toHaveAttribute('data-complete', 'true');
  await frames(view.page());
}

/** Wait until the page has painted its current state. */
async function frames(page: AnyPage): Promise<void> {
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
}

/** Return the result of `look` once it is the same twice in a row, as scrolling and layout take some frames. */
export async function still<T>(page: AnyPage, look: () => Promise<T>): Promise<T> {
  let last = await look();
  await expect
    .poll(async () => {
      const before = JSON.stringify(last);
      await frames(page);
      last = await look();
      return JSON.stringify(last) === before;
    })
    .toBe(true);
  return last;
}

/** Wait until the visible notebook has a kernel that accepts cells; a kernel looks idle even before that. */
export async function kernelReady(page: Page): Promise<void> {
  await page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook-ExecutionIndicator[data-status=idle]').waitFor();
  await expect(page.locator('#jp-main-statusbar')).toContainText('Python 3 (ipykernel) | Idle');
}

/** Return the visible rows, each as `ranks│text`. */
export async function rows(view: Locator): Promise<string[]> {
  return view.locator('.rr-row').evaluateAll(nodes =>
    nodes.map(node => {
      const part = (name: string): string => node.querySelector(name)?.textContent ?? '';
      return `${part('.rr-ranks')}${part('.rr-bar')}${part('.rr-text')}`;
    })
  );
}

/** Take a screenshot of the whole page, for people to look at. */
export async function picture(page: Page, name: string): Promise<void> {
  await page.screenshot({ path: join(__dirname, 'test-results', 'pictures', `${name}.png`) });
}
