/** Lessons of the course in a real JupyterLab, from their first cell to their last. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import type { Locator } from '@playwright/test';

import { expect, kernelReady, still, test, whole, type Page } from './rankroom';

const LESSONS = join(__dirname, '..', '..', 'notebooks');
const SOLUTION = /<summary>Solution<\/summary>\s+```python\n([\s\S]*?)```/;

interface Cell {
  cell_type: 'code' | 'markdown';
  id: string;
  source: string[];
}

interface Lab {
  jupyterapp: { commands: { execute(id: string, args?: { path: string; kernel: { name: string } }): Promise<unknown> } };
}

test.use({ kernels: null });
test.setTimeout(420_000);

/** Return a lesson with each solution typed in, and the index of each cell by its id. */
function solved(name: string): { text: string; places: Map<string, number> } {
  const notebook = JSON.parse(readFileSync(join(LESSONS, name), 'utf8')) as { cells: Cell[] };
  const places = new Map<string, number>();
  notebook.cells.forEach((cell, place) => {
    places.set(cell.id, place);
    const check = /^%%check (\S+)\n/.exec(cell.source.join(''));
    if (cell.cell_type === 'code' && check) {
      const solution = SOLUTION.exec(notebook.cells[place + 1].source.join(''));
      cell.source = [`%%check ${check[1]}\n${solution?.[1] ?? ''}`];
    }
  });
  return { text: JSON.stringify(notebook), places };
}

class Lesson {
  private constructor(
    readonly page: Page,
    private places: Map<string, number>
  ) {}

  static async open(page: Page, name: string): Promise<Lesson> {
    const { text, places } = solved(name);
    await page.contents.uploadContent(text, 'text', name);
    await page.evaluate(async path => {
      // Otherwise, JupyterLab asks which kernel to use.
      const kernel = { name: 'python3' };
      await (window as unknown as Lab).jupyterapp.commands.execute('docmanager:open', { path, kernel });
    }, name);
    await kernelReady(page);
    return new Lesson(page, places);
  }

  /** Start to run all cells; this continues past those that fail on purpose. */
  async runAll(): Promise<void> {
    await this.page.evaluate(() => {
      // Not awaited: it returns when the last cell has ended.
      void (window as unknown as Lab).jupyterapp.commands.execute('notebook:run-all-cells');
    });
  }

  cell(id: string): Locator {
    const place = this.places.get(id);
    if (place === undefined) {
      throw new Error(`no cell ${id}`);
    }
    return this.page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell').nth(place);
  }

  /** Scroll a cell into view; JupyterLab renders cells far below only then. */
  async seen(id: string): Promise<Locator> {
    await this.page.notebook.selectCells(this.places.get(id) ?? 0);
    const cell = this.cell(id);
    await cell.scrollIntoViewIfNeeded();
    return cell;
  }

  /** Take a screenshot of the page with this cell in view. */
  async picture(id: string, name: string): Promise<void> {
    await this.seen(id);
    await this.page.screenshot({ path: join(__dirname, 'test-results', 'pictures', `${name}.png`) });
  }
}

async function dark(page: Page): Promise<void> {
  await page.theme.setDarkTheme();
}

test('lesson 1: the error of a rank is shown, and right answers pass', async ({ page }) => {
  const lesson = await Lesson.open(page, '01_hello_ranks.ipynb');
  await lesson.runAll();
  await expect(await lesson.seen('start')).toContainText('everything it needs is available', { timeout: 120_000 });
  await expect(await lesson.seen('hello-3')).toContainText('✓ hello.3', { timeout: 240_000 });
  await expect(await lesson.seen('hello-1')).toContainText('✓ hello.1');
  const failed = (await lesson.seen('fail')).locator('.rr-view');
  await whole(failed);
  await expect(failed).toContainText('ZeroDivisionError');
  await expect(failed).toContainText('result = 8 / number');
  await lesson.picture('fail', 'course-01-fail');
  await lesson.picture('hello-1', 'course-01-check');
  await dark(page);
  await lesson.picture('hello-1', 'course-01-check-dark');
});

test('lesson 4: all ranks train one network, unless a step is left out', async ({ page }) => {
  const lesson = await Lesson.open(page, '04_horovod_pytorch.ipynb');
  await lesson.runAll();
  await expect(await lesson.seen('horovod-4')).toContainText('✓ horovod.4', { timeout: 300_000 });
  const toPrint = async (id: string, count: number): Promise<void> => {
    const view = (await lesson.seen(id)).locator('.rr-view');
    await whole(view);
    // A view is painted some frames after it is scrolled into view.
    await expect.poll(async () => new Set((await view.innerText()).match(/\b[0-9a-f]{8}\b/g)).size).toBe(count);
  };
  await toPrint('train', 1);
  await toPrint('no-broadcast', 2);
  await toPrint('no-wrap', 2);
  await lesson.picture('no-broadcast', 'course-04-apart');
});

test('lesson 10: training with large batches succeeds only with a warm-up', async ({ page }) => {
  const lesson = await Lesson.open(page, '10_large_batches.ipynb');
  await lesson.runAll();
  await expect(await lesson.seen('same')).toContainText('True', { timeout: 300_000 });
  const number = async (id: string): Promise<number> => {
    const view = (await lesson.seen(id)).locator('.rr-view');
    await whole(view);
    // A view is painted some frames after it is scrolled into view.
    const text = await still(page, () => view.innerText());
    return Math.max(...(text.match(/\b0\.\d+/g) ?? []).map(Number).filter(n => n < 1));
  };
  expect(await number('blow')).toBeLessThan(0.3);
  expect(await number('warm')).toBeGreaterThan(0.9);
  // Vega-Lite draws the curves.
  await expect((await lesson.seen('curves')).locator('canvas, svg.marks').first()).toBeVisible();
  await lesson.picture('curves', 'course-10-curves');
  await dark(page);
  await lesson.picture('curves', 'course-10-curves-dark');
});

test('lesson 12: repairing the straggler more than halves the time', async ({ page }) => {
  const lesson = await Lesson.open(page, '12_find_the_straggler.ipynb');
  await lesson.runAll();
  await expect(await lesson.seen('straggler-3')).toContainText('✓ straggler.3', { timeout: 300_000 });
  await expect(await lesson.seen('straggler-1')).toContainText('✓ straggler.1');
  const view = (await lesson.seen('slow')).locator('.rr-view');
  await whole(view);
  await view.getByRole('tab', { name: 'Timeline' }).click();
  await expect(view.locator('canvas').first()).toBeVisible();
  await lesson.picture('slow', 'course-12-timeline');
  const repaired = await lesson.seen('repaired');
  // JupyterLab shows a cell before its output.
  await expect(repaired).toContainText(/after: [\d.]+ s/);
  const [before, after] = ((await repaired.innerText()).match(/[\d.]+ s\b/g) ?? []).map(parseFloat);
  expect(after).toBeLessThan(before / 2);
});
