/** The browser's benchmarks; bench/browser.py starts them, with all paths in variables. */
import { defineConfig } from '@playwright/test';

import tests from '../../tests/ui/playwright.config';

export default defineConfig({
  ...tests,
  testDir: __dirname,
  testMatch: '*.bench.ts',
  // The caller removes everything.
  globalTeardown: undefined,
  outputDir: `${process.env.RANKROOM_UI_HOME ?? ''}/playwright`,
  timeout: 400_000,
  expect: { timeout: 180_000 }
});
