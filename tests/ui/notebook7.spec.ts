/** The same view in Notebook 7, if it is installed. */
import { ALWAYS, expect, LiveRecord, picture, rows, saveRuns, test, whole, type Page } from './rankroom';

test.use({ autoGoto: false });

test('Notebook 7 shows a live run and resizes its log', ALWAYS, async ({ page: lab, baseURL }) => {
  const tree = await fetch(`${baseURL}/tree`);
  test.skip(!tree.ok || !tree.url.includes('tree'), 'Notebook 7 is not installed beside JupyterLab');
  const record = new LiveRecord('notebook7');
  record.print(0, Array.from({ length: 100 }, (_, i) => `line ${i}.\n`).join(''));
  const path = await saveRuns(lab, ['notebook7']);
  // A page without the helpers for JupyterLab, which would wait for elements that are not there.
  const page = (await lab.context().newPage()) as Page;
  await page.goto(`${baseURL}/notebooks/${path}`);
  const view = page.locator('.rr-view');
  await expect(view.getByText('line 99.')).toBeVisible();
  record.print(1, 'also here\n');
  await expect(view.getByText('also here')).toBeVisible();
  expect((await rows(view)).length).toBeLessThan(40);
  await picture(page, 'notebook7-light');
  const height = (await view.boundingBox())!.height;
  await view.getByRole('button', { name: 'full height' }).click();
  await expect.poll(async () => (await view.boundingBox())!.height).toBeGreaterThan(height + 100);
  await view.getByRole('log').click();
  await page.keyboard.press('Home');
  await expect(view.getByText('line 0.')).toBeVisible();
  record.save('done');
  await whole(view);
});
