// Bundles src/page/page.ts, a run's view that needs no JupyterLab, into one script beside the extension.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const require = createRequire(import.meta.url);
const webpack = require('webpack');
const from = path => fileURLToPath(new URL(path, import.meta.url));
const standins = from('../lib/page/standins.js');

const config = {
  mode: 'production',
  entry: from('../lib/page/page.js'),
  output: { path: from('../../lab/rankroom/labextension'), filename: 'page.js' },
  resolve: {
    alias: {
      '@jupyterlab/apputils$': standins,
      '@jupyterlab/rendermime$': standins,
      '@jupyterlab/services$': standins
    }
  },
  module: { rules: [{ test: /\.css$/, use: ['style-loader', 'css-loader'] }] },
  performance: { hints: false }
};

if (!existsSync(standins)) {
  throw new Error('npm run build:lib comes first');
}
webpack(config, (error, stats) => {
  if (error || stats.hasErrors()) {
    console.error(error ?? stats.toString('errors-only'));
    process.exitCode = 1;
  }
});
