/** A run as a standalone page: the view that JupyterLab has, of the record that the page holds. */
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { ServerConnection } from '@jupyterlab/services';
import { Widget } from '@lumino/widgets';

import '../../style/index.css';
import '../../style/page.css';

import { Api } from '../api';
import { Runs } from '../run/runs';
import type { Run } from '../schema';
import { RunView } from '../view/runview';
import { registry } from './mime';
import { Recorded } from './recorded';

/** Return a part of the record, as display/run_page.py writes it into the page; '' if it is missing. */
const part = (name: string): string => document.getElementById(`part-${name || 'run'}`)?.textContent ?? '';

async function show(): Promise<void> {
  const recorded = new Recorded(part);
  const api = new Api(recorded.settings as unknown as ServerConnection.ISettings);
  const run: Run = await api.run(document.body.dataset.run ?? '');
  followTheme();
  const view = new RunView({
    run,
    runs: new Runs(api),
    api,
    rendermime: registry as unknown as IRenderMimeRegistry,
    isTrusted: true,
    isInline: false,
    open: null,
    fallback: null
  });
  document.getElementById('summary')?.remove();
  Widget.attach(view, document.getElementById('run') ?? document.body);
  document.addEventListener('click', event => save(event, recorded));
}

/** Follow the system's light or dark theme, in JupyterLab's terms. */
function followTheme(): void {
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  const follow = (): void => void (document.body.dataset.jpThemeLight = String(!dark.matches));
  dark.addEventListener('change', follow);
  follow();
}

/** Serve a download from the page instead of from a server. */
function save(event: MouseEvent, recorded: Recorded): void {
  const link = (event.target as Element).closest?.('a[download]') as HTMLAnchorElement | null;
  if (!link || link.protocol === 'blob:') {
    return;
  }
  event.preventDefault();
  const id = document.body.dataset.run;
  void recorded.answer(link.href).then(async answer => {
    const named = document.createElement('a');
    named.href = URL.createObjectURL(await answer.blob());
    named.download = link.pathname.endsWith('/trace') ? `${id}.trace.json.gz` : `${id}.log`;
    named.click();
    setTimeout(() => URL.revokeObjectURL(named.href), 60_000);
  });
}

void show();
