/** All visible text goes through JupyterLab's translator, which here marks what it has translated. */
import { galata } from '@jupyterlab/galata';
import type { Locator } from '@playwright/test';

import { ALWAYS, expect, LiveRecord, openRuns, picture, test, whole } from './rankroom';
import { openRanks } from './sidebar';

const MARK = '¡';

test.use({
  mockSettings: {
    ...galata.DEFAULT_SETTINGS,
    '@jupyterlab/translation-extension:plugin': { displayStringsPrefix: true, stringsPrefix: MARK }
  },
  // Other tests close the sidebars through menus, whose labels are marked here.
  waitForApplication: async ({ baseURL }, use) => {
    void baseURL;
    await use(async page => page.locator('#jupyterlab-splash').waitFor({ state: 'detached' }));
  }
});

/** Return texts, titles and labels in a part of the page that bypassed the translator. */
function unmarked(part: Locator, without: string): Promise<string[]> {
  return part.evaluate((node, { MARK, without }) => {
    const words = (text: string | null): boolean => /\p{L}{3}/u.test(text ?? '');
    const isOurs = (element: Element | null): boolean => Boolean(element) && !element!.closest(without);
    const found: string[] = [];
    const texts = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      if (isOurs(text.parentElement) && words(text.textContent) && !text.textContent!.includes(MARK)) {
        found.push(text.textContent!);
      }
    }
    for (const element of [node, ...node.querySelectorAll('*')]) {
      for (const name of ['title', 'aria-label', 'placeholder']) {
        const value = element.getAttribute(name);
        if (isOurs(element) && words(value) && !value!.includes(MARK)) {
          found.push(`${name}: ${value}`);
        }
      }
    }
    return [...new Set(found)];
  }, { MARK, without });
}

test('all text of the sidebar and its form is translated', ALWAYS, async ({ page }) => {
  const panel = await openRanks(page);
  await panel.locator('.rr-section > summary').first().click();
  const form = panel.getByRole('form');
  await expect(form.locator('.rr-field').first()).toBeVisible();
  await form.locator('summary').click();
  // The names of sites and runs come from the server.
  expect(await unmarked(panel, 'option, .rr-run-row')).toEqual([]);
  await form.locator('select').selectOption('perlmutter');
  await expect(form.getByRole('button').first()).toContainText(MARK);
  // And so do the fields that a site's profile defines.
  expect(await unmarked(panel, 'option, .rr-run-row, .rr-about, .rr-field > input')).toEqual([]);
  await picture(page, 'translated-sidebar');
});

test('all text of the log, timeline and profile is translated', async ({ page }) => {
  const view = await openRuns(page, ['trace-slow_loader']);
  await whole(view);
  // The ranks' output, and sentences that the server composes.
  const given = '.rr-list, .rr-diagnosis, .rr-words, .rr-col-collective';
  expect(await unmarked(view, given)).toEqual([]);
  for (const [tab, isThere] of [[1, '[data-matched=true]'], [2, '[data-ready=true]']] as const) {
    await view.getByRole('tab').nth(tab).click();
    await expect(view.locator(isThere)).toBeVisible();
    expect(await unmarked(view, given)).toEqual([]);
  }
  await picture(page, 'translated-view');
});

test('all text of the metrics tab is translated', async ({ page }) => {
  const record = new LiveRecord('translated');
  for (let i = 0; i < 25; i++) {
    [0, 1].forEach(rank => record.report(rank, `m${i}`, [1, 2, 3 + rank]));
  }
  record.save('done');
  const view = await openRuns(page, ['translated']);
  await whole(view);
  await view.getByRole('tab').nth(1).click();
  await expect(view.locator('.rr-metrics')).toHaveAttribute('data-ready', 'true');
  await view.locator('.rr-mt-others > summary').click();
  await view.locator('.rr-mt-area').first().hover();
  // Names of metrics come from the user.
  expect(await unmarked(view, '.rr-mt-title > b, .rr-list, .rr-words')).toEqual([]);
  expect(await unmarked(page.locator('.rr-tl-tip'), 'b')).toEqual([]);
  await picture(page, 'translated-metrics');
});
