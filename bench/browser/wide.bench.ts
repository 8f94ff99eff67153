/** The log of many ranks: how soon its view is painted, and frames while it scrolls. */
import { expect, test } from '../../tests/ui/rankroom';
import { ASKED, framesOf, percentile95, report, watchFrames } from './page';

interface Lab {
  jupyterapp: { commands: { execute(id: string, args: object): Promise<unknown> } };
}

const STEPS = 200;

test('many ranks', async ({ page }) => {
  await expect(page.locator('#jupyterlab-splash')).toHaveCount(0);
  const opened: number[] = [];
  for (let i = 0; i < ASKED.pairs; i++) {
    await page.evaluate(() => (window as unknown as Lab).jupyterapp.commands.execute('application:close-all', {}));
    await expect(page.locator('.rr-view')).toHaveCount(0);
    await page.evaluate(() => new Promise(done => setTimeout(done, 500)));
    opened.push(await page.evaluate(async ({ run, ranks }) => {
      const begun = performance.now();
      void (window as unknown as Lab).jupyterapp.commands.execute('rankroom:open-run', { id: run, tab: 'logs' });
      return new Promise<number>((done, fail) => {
        const look = (): void => {
          const view = document.querySelector<HTMLElement>('.rr-view');
          const isThere = view?.dataset.complete === 'true' && view.querySelectorAll('.rr-row').length > 0;
          if (isThere && view.querySelectorAll('.rr-cell').length === ranks) {
            // A message posted in a frame arrives after that frame has been painted.
            const channel = new MessageChannel();
            channel.port1.onmessage = () => done((performance.now() - begun) / 1000);
            channel.port2.postMessage(null);
          } else if (performance.now() - begun > 60_000) {
            fail(new Error('the view is not there'));
          } else {
            requestAnimationFrame(look);
          }
        };
        requestAnimationFrame(look);
      });
    }, { ...ASKED }));
  }
  await watchFrames(page);
  await page.locator('.rr-list').evaluate(async (box, steps) => {
    for (let step = 0; step < steps; step++) {
      box.scrollTop = (0.5 + 0.5 * Math.cos(step / 9)) * (box.scrollHeight - box.clientHeight);
      await new Promise(requestAnimationFrame);
    }
  }, STEPS);
  report('opened', 'ours', opened);
  report('scrolled', 'ours', [percentile95(await framesOf(page))]);
});
