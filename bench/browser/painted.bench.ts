/** How soon the first line of a cell is painted after the cell was started. */
import { expect, test, type Page } from '../../tests/ui/rankroom';
import { ASKED, openNotebook, report } from './page';

const START = `%load_ext rankroom
%cluster start --ranks 2
import os, ipyparallel as ipp
peer = ipp.Cluster(n=2, profile_dir=os.environ["RANKROOM_HOME"] + "/ipp")
view = peer.start_and_connect_sync()[:]; view.block = True; view.activate()
for i in view.client.ids: view.client[i].push({"rank": i}, block=True)
print("both", "ready")`;
const STOP = '%cluster stop\npeer.stop_cluster_sync(); print("both", "stopped")';

interface Cell {
  model: { sharedModel: { setSource(source: string): void } };
  outputArea: { node: HTMLElement };
}
interface Lab {
  jupyterapp: {
    commands: { execute(id: string): Promise<unknown> };
    shell: { currentWidget: { content: { activeCellIndex: number; widgets: Cell[] } } };
  };
}

/** Return the seconds until a cell's first line is painted; the cell runs longer than that. */
async function painted(page: Page, index: number, magic: string, mark: number): Promise<number> {
  // The text is computed, as the source is visible, too.
  const source = `${magic}\nimport time\nprint("mark", 1000 * ${mark} + rank, flush=True)\ntime.sleep(0.5)`;
  return page.evaluate(async ({ index, source, mark }) => {
    const { commands, shell } = (window as unknown as Lab).jupyterapp;
    const notebook = shell.currentWidget.content;
    const cell = notebook.widgets[index];
    cell.model.sharedModel.setSource(source);
    notebook.activeCellIndex = index;
    await new Promise(done => setTimeout(done, 200));
    const line = new RegExp(`mark ${mark}00[01]`);
    const begun = performance.now();
    const run = commands.execute('notebook:run-cell');
    const seen = new Promise<number>((done, fail) => {
      const look = (): void => {
        if (line.test(cell.outputArea.node.textContent ?? '')) {
          // A message posted in a frame arrives after that frame has been painted.
          const channel = new MessageChannel();
          channel.port1.onmessage = () => done(performance.now() - begun);
          channel.port2.postMessage(null);
        } else if (performance.now() - begun > 20_000) {
          fail(new Error(`no line on the screen: ${cell.outputArea.node.textContent}`));
        } else {
          requestAnimationFrame(look);
        }
      };
      requestAnimationFrame(look);
    });
    const took = await seen;
    await run;
    const { top, bottom } = cell.outputArea.node.getBoundingClientRect();
    if (top > innerHeight || bottom < 0) {
      throw new Error('the output is out of sight: nothing was painted');
    }
    return took / 1000;
  }, { index, source, mark });
}

test('first line painted', async ({ page }) => {
  const sources = ['%%distributed\npass', '%%px\npass', START, STOP];
  await openNotebook(page, 'painted.ipynb', sources.map(source => ({ source })));
  const output = (index: number) => page.locator('.jp-Notebook .jp-CodeCell').nth(index).locator('.jp-OutputArea');
  try {
    await page.notebook.runCell(2);
    await expect(output(2)).toContainText('both ready');
    const ours: number[] = [];
    const peers: number[] = [];
    for (let pair = 0; pair < ASKED.pairs + 2; pair++) {
      ours.push(await painted(page, 0, '%%distributed', 2 * pair + 1));
      peers.push(await painted(page, 1, '%%px', 2 * pair + 2));
    }
    // The first two of each side fill caches.
    report('painted', 'ours', ours.slice(2));
    report('painted', 'peers', peers.slice(2));
  } finally {
    await page.notebook.runCell(3);
    await expect(output(3)).toContainText('both stopped');
  }
});
