/** The only place that asks the server; every route is under `rankroom/`. */
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { MetricsAnswer } from './metrics/answer';
import type { Question } from './metrics/source';
import type { Profile, Prompt, Run, RunState } from './schema';
import type { CollectivesAnswer } from './timeline/collectives';
import { trans } from './translation';

/** So many of the newest runs are looked at for some to compare with. */
const COMPARABLE = 200;
/** For the first of an answer to come; a server that is busy may take long. */
const PATIENCE_MS = 60_000;
/** The same beyond what was to be waited for. */
const EXTRA_MS = 30_000;

/** A piece of events.jsonl. */
export interface Chunk {
  text: string;
  /** The byte to read on from. */
  next: number;
  /** Bytes there were when this was read. */
  size: number;
  state: RunState;
  /** Differs whenever run.json was replaced; '' where the server does not tell. */
  changed: string;
}

/** A step for a live run that is stuck. */
export type Step = 'interrupt' | 'release' | 'restart';

interface Query {
  /** What has several values is repeated. */
  [name: string]: string | number | readonly string[];
}

export class ApiError extends Error {
  constructor(
    message: string,
    /** HTTP's number, or 0 when no answer came. */
    readonly status: number,
    /** What is wrong with a form, by field. */
    readonly errors: { [field: string]: string } = {},
    readonly isLoggedOut = false
  ) {
    super(message);
  }
}

export class Api {
  /** `place` is where under `rankroom/` the routes are: those of runs are also where a teacher shows some. */
  constructor(
    private settings: ServerConnection.ISettings,
    private place = ''
  ) {}

  /** Milliseconds that the server's clock is ahead of this one, by its answers. */
  private ahead = 0;

  /** Milliseconds since the epoch by the server's clock, as far as that is known. */
  get now(): number {
    return Date.now() + this.ahead;
  }

  /** The same server's routes in another place. */
  at(place: string): Api {
    return new Api(this.settings, place);
  }

  /** The run as the server knows it. */
  async run(id: string, signal?: AbortSignal): Promise<Run> {
    return (await parsed(await this.get(['runs', id], {}, signal))) as Run;
  }

  /** The newest runs that have metrics, or may come to have some. */
  async comparable(): Promise<Run[]> {
    const answer = await this.get(['runs'], { limit: COMPARABLE, metrics: 1 });
    return ((await parsed(answer)) as { runs: Run[] }).runs;
  }

  /** Where the time of the run went; of a live run, so far. */
  async profile(id: string): Promise<Profile> {
    return (await parsed(await this.get(['runs', id, 'profile'], {}))) as Profile;
  }

  /** A long run's timeline, coarse; '' of one that has none. */
  async overview(id: string, signal?: AbortSignal): Promise<string> {
    return (await this.get(['runs', id, 'overview'], {}, signal)).text();
  }

  /** Which spans belong together; of a live run, so far. */
  async collectives(id: string): Promise<CollectivesAnswer> {
    return (await parsed(await this.get(['runs', id, 'collectives'], {}))) as CollectivesAnswer;
  }

  /** Curves of what ranks reported, in a range; of a live run, so far. */
  async metrics(id: string, { axis, range, points, names }: Question): Promise<MetricsAnswer> {
    const query: Query = { axis, points, ...(range ?? {}), name: names };
    return (await parsed(await this.get(['runs', id, 'metrics'], query))) as MetricsAnswer;
  }

  /**
   * Whole lines of events.jsonl from byte `after` on, some `limit` bytes; waits up to `wait` seconds for the first, or
   * for a run.json other than the one that `changed` stands for.
   */
  async events(
    id: string,
    after: number,
    wait: number,
    changed: string,
    limit: number,
    signal?: AbortSignal
  ): Promise<Chunk> {
    const query: Query = { after, wait, limit, ...(changed ? { changed } : {}) };
    const response = await this.ask('GET', ['runs', id, 'events'], query, signal, undefined, Math.max(PATIENCE_MS, wait * 1_000 + EXTRA_MS));
    const number = (name: string): number => Number(response.headers.get(name) ?? NaN);
    const next = number('X-Rankroom-Next');
    const state = response.headers.get('X-Rankroom-State') as RunState | null;
    if (!Number.isFinite(next) || state === null) {
      const isPage = response.headers.get('Content-Type')?.startsWith('text/html');
      const words = isPage ? loggedOut() : trans.__('the answer lacks the X-Rankroom headers: does a proxy drop them?');
      throw new ApiError(words, 502);
    }
    const now = response.headers.get('X-Rankroom-Changed') ?? '';
    return { text: await response.text(), next, size: number('X-Rankroom-Size'), state, changed: now };
  }

  /** Take a step, for some ranks only where it is said; returns what was done, in a sentence. */
  async take(id: string, step: Step, ranks: readonly number[] = []): Promise<string> {
    const query: Query = ranks.length ? { rank: ranks.join(',') } : {};
    const response = await this.ask('POST', ['runs', id, step], query);
    return String(((await parsed(response)) as { message: unknown }).message);
  }

  /** Answer what ranks ask; an error says that it was not taken. */
  async answer(id: string, text: string, prompts: readonly Prompt[]): Promise<void> {
    const asked = prompts.map(({ rank, number }) => `${rank}:${number}`).join();
    await this.ask('POST', ['runs', id, 'answer'], {}, undefined, { text, prompts: asked });
  }

  /** What can follow in a line for the debugger of the first of these: from which character on, and what. */
  async complete(id: string, text: string, { rank, number }: Prompt): Promise<{ begin: number; matches: string[] }> {
    const response = await this.ask('POST', ['runs', id, 'complete'], {}, undefined, { text, prompts: `${rank}:${number}` });
    return (await parsed(response)) as { begin: number; matches: string[] };
  }

  /** Where the threads of each rank are, as text. */
  async stacks(id: string): Promise<Map<number, string>> {
    const { stacks } = (await parsed(await this.get(['runs', id, 'stacks'], {}))) as {
      stacks: { [rank: string]: string };
    };
    return new Map(Object.entries(stacks).map(([rank, text]) => [Number(rank), text]));
  }

  /** Whether the server has Rankroom's routes. */
  async isThere(signal?: AbortSignal): Promise<boolean> {
    try {
      // Where a teacher shows runs, there are routes for those only.
      await (this.place ? this.at('') : this).get(['version'], {}, signal);
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
    return this.download(['runs', id, 'log'], ranks ? { rank: ranks.join(',') } : {});
  }

  /** Where the timeline can be downloaded from, as compressed Chrome JSON, which Perfetto opens. */
  traceUrl(id: string): string {
    return this.download(['runs', id, 'trace'], {});
  }

  /** An address for a link, which carries no header with a token. */
  private download(parts: string[], query: Query): string {
    const { appendToken, token } = this.settings;
    return this.url(parts, { ...query, ...(appendToken && token ? { token } : {}) });
  }

  private url(parts: string[], query: Query): string {
    const path = parts.map(encodeURIComponent).join('/');
    const pairs = Object.entries(query).flatMap(([name, value]) =>
      (typeof value === 'object' ? value : [String(value)]).map(each => `${name}=${encodeURIComponent(each)}`)
    );
    return URLExt.join(this.settings.baseUrl, 'rankroom', this.place, path) + (pairs.length ? `?${pairs.join('&')}` : '');
  }

  private get(parts: string[], query: Query, signal?: AbortSignal): Promise<Response> {
    return this.ask('GET', parts, query, signal);
  }

  /**
   * Ask a route; ApiError when it refuses, or does not answer: what is only read, within `patience` milliseconds, as a
   * connection may be cut without a word, with a laptop's lid.
   */
  async ask(
    method: 'GET' | 'POST',
    parts: string[],
    query: Query,
    signal?: AbortSignal,
    body?: { [name: string]: string },
    patience = method === 'GET' ? PATIENCE_MS : Infinity
  ): Promise<Response> {
    const url = this.url(parts, query);
    const ending = new AbortController();
    const end = (): void => ending.abort();
    signal?.addEventListener('abort', end);
    if (signal?.aborted) {
      end();
    }
    const late = Number.isFinite(patience) ? setTimeout(end, patience) : undefined;
    const init: RequestInit = { method, signal: ending.signal };
    if (body) {
      init.body = JSON.stringify(body);
    }
    let response: Response;
    const asked = Date.now();
    try {
      response = await ServerConnection.makeRequest(url, init, this.settings);
    } catch (error) {
      if (signal?.aborted) {
        throw error;
      }
      throw new ApiError(trans.__('the Jupyter server does not answer'), 0);
    } finally {
      // Once an answer begins, all of it is read.
      clearTimeout(late);
      signal?.removeEventListener('abort', end);
    }
    this.setClock(Date.parse(response.headers.get('Date') ?? ''), asked);
    if (!response.ok) {
      throw await refusal(response);
    }
    return response;
  }

  /**
   * `told` has whole seconds, and is from some time between the question and its answer, which may have waited for
   * what is to come: what was known of the clock stays if it can be.
   */
  private setClock(told: number, asked: number): void {
    if (Number.isFinite(told)) {
      this.ahead = Math.min(Math.max(this.ahead, told - Date.now()), told + 1_000 - asked);
    }
  }
}

/** What a route has answered; ApiError where that is none of its answers. */
export async function parsed(response: Response): Promise<unknown> {
  try {
    return await response.json();
  } catch (error) {
    const isPage = error instanceof SyntaxError; // as that of a proxy that asks for a login
    throw new ApiError(isPage ? loggedOut() : trans.__('an answer of the Jupyter server broke off'), 0);
  }
}

function loggedOut(): string {
  return trans.__('log in to the Jupyter server again, in another tab or by loading this page again');
}

/** What the server said was wrong. */
async function refusal(response: Response): Promise<ApiError> {
  const text = await response.text();
  const { status, statusText } = response;
  if (status === 401) {
    return new ApiError(loggedOut(), status, {}, true);
  }
  try {
    const { message, errors } = JSON.parse(text) as { message?: unknown; errors?: { [field: string]: string } };
    // The server itself says no more than this to those it does not know, or not any more.
    if (status === 403 && message === 'Forbidden') {
      return new ApiError(loggedOut(), status, {}, true);
    }
    if (typeof message === 'string' && message) {
      return new ApiError(message, status, errors);
    }
  } catch {
    // Not from a route of ours; a proxy's page says less than its number.
  }
  return new ApiError(trans.__('the server answered %1 %2', status, statusText), status);
}
