/** How to start a JupyterLab for the tests. */
import { createServer } from 'node:net';
import { join, resolve } from 'node:path';

const root = resolve(__dirname, '../..');

/** Return the command, address and environment, with Rankroom's server extension enabled or not. */
export function serverCommand(port: number, isEnabled: boolean): {
  command: string;
  url: string;
  env: { [name: string]: string };
} {
  const python = process.env.RANKROOM_PYTHON ?? join(root, '.venv/bin/python');
  const home = process.env.RANKROOM_UI_HOME ?? '';
  return {
    command: `${python} -m jupyterlab --config=${join(__dirname, 'jupyter_server_config.py')}`,
    url: `http://127.0.0.1:${port}/lab`,
    env: {
      ...(process.env as { [name: string]: string }),
      RANKROOM_HOME: join(home, 'home'),
      RANKROOM_TEST_PORT: String(port),
      RANKROOM_UI_ENABLED: isEnabled ? '1' : '',
      JUPYTERLAB_GALATA_ROOT_DIR: join(home, 'root')
    }
  };
}

/** Return a free port below the ephemeral ones, as the system may give those to other programs. */
export function freePort(): Promise<number> {
  const port = 20_000 + Math.floor(10_000 * Math.random());
  return new Promise(done => {
    const probe = createServer()
      .on('error', () => done(freePort()))
      .listen(port, '127.0.0.1', () => probe.close(() => done(port)));
  });
}
