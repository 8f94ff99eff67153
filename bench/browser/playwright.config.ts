/** The browser's benchmarks: started by bench/browser.py, which says where everything is. */
import { defineConfig } from '@playwright/test';

import tests from '../../tests/ui/playwright.config';

export default defineConfig({
  ...tests,
  testDir: __dirname,
  testMatch: '*.bench.ts',
  // The caller removes what this leaves.
  globalTeardown: undefined,
  outputDir: `${process.env.RANKROOM_UI_HOME ?? ''}/playwright`,
  timeout: 400_000,
  expect: { timeout: 180_000 }
});
