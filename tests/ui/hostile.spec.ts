/** Hostile output, which must not freeze the page, and files that outputs name. */
import { ALWAYS, expect, LiveRecord, openRuns, picture, rows, viewTest, whole } from './rankroom';

viewTest('a line of 12 MB is truncated, and the page stays responsive', async ({ page }) => {
  const record = new LiveRecord('long-line');
  record.print(0, 'before\n');
  for (let i = 0; i < 12; i++) {
    record.print(0, 'x'.repeat(1 << 20));
  }
  record.print(0, '\nafter\n');
  record.save('done');
  const view = await openRuns(page, ['long-line']);
  await whole(view);
  await expect(view.locator('.rr-row').last()).toHaveText('0│after');
  await expect(view.locator('.rr-cut')).toContainText('12,572,912 more characters in the whole log');
  await view.getByRole('log').click();
  await page.keyboard.press('Home');
  await expect(view.getByText('before')).toBeVisible();
  await view.getByPlaceholder('filter').fill('xxx');
  await expect(view.locator('.rr-row')).toHaveCount(1);
  // The row is as high as was computed for it, so that the list's height is correct.
  const heights = await view.locator('.rr-row').evaluate(row => {
    const space = row.closest('.rr-space')!;
    return [row.getBoundingClientRect().height, space.getBoundingClientRect().height];
  });
  expect(Math.abs(heights[0] - heights[1])).toBeLessThan(20);
  await expect(view.locator('.rr-foot')).toHaveText('1 row with this text: click into the log to scroll it');
  await picture(page, 'long-line-light');
});

viewTest('markup, scripts and links in a log stay text', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('markup');
  const evil = '<img src=x onerror="window.evil=1"><script>window.evil=1</script>';
  record.print(0, `${evil}\n\x1b[31m${evil}\x1b[0m\n`);
  record.add('error', 0, { ename: 'E', evalue: evil, traceback: [evil] });
  record.add('display', 0, { data: { 'text/html': `<b>bold</b>${evil}` } });
  record.save('failed', { failure: { rank: 0, ename: 'E', evalue: evil } });
  const view = await openRuns(page, ['markup']);
  await whole(view);
  expect((await rows(view)).slice(0, 2)).toEqual([`0│${evil}`, `0│${evil}`]);
  // The notebook is not trusted, so the rank's rich output is sanitized.
  await expect(view.locator('.rr-display b')).toHaveText('bold');
  await expect(view.locator('.rr-display script')).toHaveCount(0);
  expect(await page.evaluate(() => 'evil' in window)).toBe(false);
});

viewTest('relative paths in rich outputs resolve beside the notebook', ALWAYS, async ({ page }) => {
  const record = new LiveRecord('files');
  record.add('display', 0, { data: { 'text/html': '<img src="plots/fig.png"><a href="out.csv">out</a>' } });
  record.save('done');
  const view = await openRuns(page, ['files']);
  await whole(view);
  await expect(view.locator('.rr-display img')).toHaveAttribute('src', /\/files\/plots\/fig\.png/);
  await expect(view.locator('.rr-display a')).toHaveAttribute('href', /\/files\/out\.csv/);
});

viewTest('five live runs on one page are followed independently', async ({ page }) => {
  const records = Array.from({ length: 5 }, (_, i) => new LiveRecord(`one-of-five-${i}`));
  const view = await openRuns(page, records.map(({ id }) => id));
  for (const [i, record] of records.entries()) {
    record.print(0, `hello from run ${i}\n`);
    await view.nth(i).scrollIntoViewIfNeeded();
    await expect(view.nth(i).getByText(`hello from run ${i}`)).toBeVisible();
  }
  records.forEach(record => record.save('done'));
  for (let i = 0; i < records.length; i++) {
    await view.nth(i).scrollIntoViewIfNeeded();
    await whole(view.nth(i));
  }
});
