/**
 * Browser tests: a real JupyterLab in headless Chromium, with the golden records in its RANKROOM_HOME.
 *
 * RANKROOM_PYTHON names the Python that has JupyterLab (default: .venv's), RANKROOM_CHROMIUM the
 * browser, RANKROOM_TEST_PORT the port on loopback.
 */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { defineConfig } from '@playwright/test';

import { serverCommand } from './server';

const port = Number(process.env.RANKROOM_TEST_PORT ?? 8899);

// Workers read this file as well, and must use the folder that the first process has created.
process.env.RANKROOM_UI_HOME ??= mkdtempSync(join(tmpdir(), 'rankroom-ui-'));

export default defineConfig({
  testDir: __dirname,
  globalTeardown: './clean.ts',
  outputDir: join(__dirname, 'test-results'),
  reporter: [['list']],
  // One JupyterLab and one browser: two cores cannot handle more, as ranks run as well.
  workers: 1,
  timeout: 300_000,
  expect: { timeout: 60_000 },
  use: {
    baseURL: `http://127.0.0.1:${port}`,
    viewport: { width: 1100, height: 800 },
    video: 'off',
    screenshot: 'only-on-failure',
    launchOptions: {
      executablePath: process.env.RANKROOM_CHROMIUM ?? '/usr/bin/chromium',
      args: [
        '--no-sandbox',
        '--disable-gpu',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync',
        '--no-first-run'
      ]
    }
  },
  // A hub that a pytest test has started, or a page from disk, needs no server.
  webServer: process.env.RANKROOM_UI_HUB || process.env.RANKROOM_UI_SLIDES ? undefined : {
    ...serverCommand(port, true),
    timeout: 120_000,
    reuseExistingServer: false,
    stderr: process.env.RANKROOM_UI_VERBOSE ? 'pipe' : 'ignore'
  }
});
