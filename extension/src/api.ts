/** The only place that asks the server; every route is under `rankroom/`. */
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { Run, RunState } from './schema';

/** A piece of events.jsonl. */
export interface Chunk {
  text: string;
  /** The byte to read on from. */
  next: number;
  /** Bytes there were when this was read. */
  size: number;
  state: RunState;
}

export class ApiError extends Error {
  constructor(
    message: string,
    /** HTTP's number, or 0 when no answer came. */
    readonly status: number
  ) {
    super(message);
  }
}

export class Api {
  constructor(private settings: ServerConnection.ISettings) {}

  /** The run as the server knows it. */
  async run(id: string, signal?: AbortSignal): Promise<Run> {
    return (await (await this.get(['runs', id], {}, signal)).json()) as Run;
  }

  /** Whole lines of events.jsonl from byte `after` on; waits up to `wait` seconds for the first. */
  async events(id: string, after: number, wait: number, signal?: AbortSignal): Promise<Chunk> {
    const response = await this.get(['runs', id, 'events'], { after, wait }, signal);
    const number = (name: string): number => Number(response.headers.get(name) ?? NaN);
    const next = number('X-Rankroom-Next');
    const state = response.headers.get('X-Rankroom-State') as RunState | null;
    if (!Number.isFinite(next) || state === null) {
      throw new ApiError('the answer lacks the X-Rankroom headers: does a proxy drop them?', 502);
    }
    return { text: await response.text(), next, size: number('X-Rankroom-Size'), state };
  }

  /** Whether the server has Rankroom's routes. */
  async isThere(signal?: AbortSignal): Promise<boolean> {
    try {
      await this.get(['version'], {}, signal);
      return true;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        return false;
      }
      throw error;
    }
  }

  /** Where the whole log can be downloaded from. */
  logUrl(id: string, ranks: readonly number[] | null): string {
    return this.url(['runs', id, 'log'], {
      ...(ranks ? { rank: ranks.join(',') } : {}),
      ...(this.settings.appendToken && this.settings.token ? { token: this.settings.token } : {})
    });
  }

  private url(parts: string[], query: { [name: string]: string | number }): string {
    const path = parts.map(encodeURIComponent).join('/');
    return URLExt.join(this.settings.baseUrl, 'rankroom', path) + URLExt.objectToQueryString(query);
  }

  private async get(
    parts: string[],
    query: { [name: string]: string | number },
    signal?: AbortSignal
  ): Promise<Response> {
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(this.url(parts, query), { signal }, this.settings);
    } catch (error) {
      if (signal?.aborted) {
        throw error;
      }
      throw new ApiError('the Jupyter server does not answer', 0);
    }
    if (!response.ok) {
      throw new ApiError(await reason(response), response.status);
    }
    return response;
  }
}

/** What the server said was wrong. */
async function reason(response: Response): Promise<string> {
  const text = await response.text();
  try {
    const { message } = JSON.parse(text) as { message?: unknown };
    if (typeof message === 'string' && message) {
      return message;
    }
  } catch {
    // Not from a route of ours; a proxy's page says less than its number.
  }
  return `the server answered ${response.status} ${response.statusText}`;
}
