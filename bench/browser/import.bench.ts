/** Another program's trace, from the command that imports it until all of it is painted. */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

import { expect, test } from '../../tests/ui/rankroom';
import { openTimeline } from './opened';
import { ASKED, report } from './page';

interface Lab {
  jupyterapp: { commands: { execute(id: string, args: object): Promise<unknown> } };
}

/** Start `rankroom timeline`; return promises of the run's id and of the command's end. */
function importing(): { id: Promise<string>; ended: Promise<unknown> } {
  const python = process.env.RANKROOM_PYTHON ?? 'python3';
  const env = { ...process.env, RANKROOM_HOME: `${process.env.RANKROOM_UI_HOME}/home` };
  const command = spawn(python, ['-m', 'rankroom', 'timeline', process.env.RANKROOM_BENCH_FILE ?? ''], { env });
  const ended = new Promise(done => command.once('close', done));
  const id = new Promise<string>((done, fail) => {
    let said = '';
    command.stderr.on('data', data => (said += String(data)));
    createInterface(command.stdout).on('line', line => {
      const found = /^(\S+): `%runs/.exec(line);
      if (found) {
        done(found[1]);
      }
    });
    void ended.then(() => fail(new Error(`no record: ${said}`)));
  });
  return { id, ended };
}

test('import', async ({ page }) => {
  const read: number[] = [];
  const painted: number[] = [];
  await expect(page.locator('#jupyterlab-splash')).toHaveCount(0);
  for (let i = 0; i < ASKED.pairs; i++) {
    await page.evaluate(() => (window as unknown as Lab).jupyterapp.commands.execute('application:close-all', {}));
    await expect(page.locator('.rr-view')).toHaveCount(0);
    await page.evaluate(() => new Promise(done => setTimeout(done, 1000)));
    const begun = performance.now();
    const { id, ended } = importing();
    const run = await id;
    read.push((performance.now() - begun) / 1000);
    await openTimeline(page, run);
    painted.push((performance.now() - begun) / 1000);
    await ended;
  }
  report('read', 'ours', read);
  report('painted', 'ours', painted);
});
