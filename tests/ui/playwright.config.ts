import { defineConfig } from '@playwright/test';

const port = process.env.RANKROOM_TEST_PORT ?? '8899';

export default defineConfig({
  testDir: '.',
  outputDir: 'test-results',
  timeout: 120_000,
  // One JupyterLab, one browser: two cores carry no more, and ranks run besides.
  workers: 1,
  fullyParallel: false,
  retries: 0,
  reporter: [['list']],
  use: {
    baseURL: `http://127.0.0.1:${port}`,
    browserName: 'chromium',
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
  webServer: {
    command: 'jupyter lab --config jupyter_server_config.py',
    url: `http://127.0.0.1:${port}/lab`,
    timeout: 60_000,
    reuseExistingServer: false
  }
});
