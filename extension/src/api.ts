/** All requests to the server go through this module; every route is under `rankroom/`. */
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { MetricsAnswer } from './metrics/answer';
import type { Question } from './metrics/source';
import type { Profile, Prompt, Run, RunState } from './schema';
import type { CollectivesAnswer } from './timeline/collectives';
import { trans } from './translation';

/** How many of the newest runs are searched for ones to compare with. */
const COMPARABLE = 200;
/** Timeout until a reply begins; a busy server may be slow. */
const PATIENCE_MS = 60_000;
/** The same for an action: the server answers within 50 s or twice that, whether it is done by then or not. */
const POST_PATIENCE_MS = 120_000;
/** The same for a long poll, beyond the time that the server may wait. */
const EXTRA_MS = 30_000;

/** A piece of events.jsonl. */
export interface Chunk {
  text: string;
  /** Byte offset of the next piece. */
  next: number;
  /** Size of events.jsonl when this was read, in bytes. */
  size: number;
  state: RunState;
  /** Changes whenever run.json is replaced; '' if the server does not send it. */
  changed: string;
}

/** A step for a live run that is stuck. */
export type Step = 'interrupt' | 'release' | 'restart';

interface Query {
  /** A parameter with several values is repeated. */
  [name: string]: string | number | readonly string[];
}

export class ApiError extends Error {
  constructor(
    message: string,
    /** The HTTP status, or 0 without a usable reply. */
    readonly status: number,
    /** The errors of a form, by field. */
    readonly errors: { [field: string]: string } = {},
    readonly isLoggedOut = false
  ) {
    super(message);
  }
}

export class Api {
  /** `place` is the path of the routes under `rankroom/`: runs that a teacher shows have routes of their own. */
  constructor(
    private settings: ServerConnection.ISettings,
    private place = ''
  ) {}

  /** Milliseconds that the server's clock is ahead of this one, estimated from its replies. */
  private ahead = 0;

  /** Milliseconds since the epoch by the server's clock, as far as it is known. */
  get now(): number {
    return Date.now() + this.ahead;
  }

  /** Return a client for the same server's routes under another path. */
  at(place: string): Api {
    return new Api(this.settings, place);
  }

  /** Return the run as the server knows it. */
  async run(id: string, signal?: AbortSignal): Promise<Run> {
    return (await parsed(await this.get(['runs', id], {}, signal))) as Run;
  }

  /** Return those of the newest runs that have metrics, or are running and may yet report some. */
  async comparable(): Promise<Run[]> {
    const answer = await this.get(['runs'], { limit: COMPARABLE, metrics: 1 });
    return ((await parsed(answer)) as { runs: Run[] }).runs;
  }

  /** Return where the run's time went; for a live run, so far. */
  async profile(id: string): Promise<Profile> {
    return (await parsed(await this.get(['runs', id, 'profile'], {}))) as Profile;
  }

  /** Return a coarse timeline of a long run; '' if there is none. */
  async overview(id: string, signal?: AbortSignal): Promise<string> {
    return textOf(await this.get(['runs', id, 'overview'], {}, signal));
  }

  /** Return which spans belong to the same collective; for a live run, so far. */
  async collectives(id: string): Promise<CollectivesAnswer> {
    return (await parsed(await this.get(['runs', id, 'collectives'], {}))) as CollectivesAnswer;
  }

  /** Return curves of the metrics that ranks reported, in a range; for a live run, so far. */
  async metrics(id: string, { axis, range, points, names }: Question): Promise<MetricsAnswer> {
    const query: Query = { axis, points, ...(range ?? {}), name: names };
    return (await parsed(await this.get(['runs', id, 'metrics'], query))) as MetricsAnswer;
  }

  /**
   * Return whole lines of events.jsonl from byte `after` on, about `limit` bytes. The server waits up to `wait` seconds
   * for the first line, or for a run.json other than the version that `changed` identifies.
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
    const text = await textOf(response);
    const number = (name: string): number => Number(response.headers.get(name) ?? NaN);
    const next = number('X-Rankroom-Next');
    const state = response.headers.get('X-Rankroom-State') as RunState | null;
    if (!Number.isFinite(next) || state === null) {
      const isPage = response.headers.get('Content-Type')?.startsWith('text/html');
      const words = isPage ? loggedOut() : trans.__('the reply lacks the X-Rankroom headers: does a proxy remove them?');
      throw new ApiError(words, 502);
    }
    const now = response.headers.get('X-Rankroom-Changed') ?? '';
    return { text, next, size: number('X-Rankroom-Size'), state, changed: now };
  }

  /** Take a step, for all ranks or only those given; return what was done, in a sentence. */
  async take(id: string, step: Step, ranks: readonly number[] = []): Promise<string> {
    const query: Query = ranks.length ? { rank: ranks.join(',') } : {};
    const response = await this.ask('POST', ['runs', id, step], query);
    return String(((await parsed(response)) as { message: unknown }).message);
  }

  /** Answer prompts of ranks. Throws ApiError if the answer was not accepted. */
  async answer(id: string, text: string, prompts: readonly Prompt[]): Promise<void> {
    const asked = prompts.map(({ rank, number }) => `${rank}:${number}`).join();
    await this.ask('POST', ['runs', id, 'answer'], {}, undefined, { text, prompts: asked });
  }

  /** Return completions of a line for a rank's debugger, and the index of the character at which they begin. */
  async complete(id: string, text: string, { rank, number }: Prompt): Promise<{ begin: number; matches: string[] }> {
    const response = await this.ask('POST', ['runs', id, 'complete'], {}, undefined, { text, prompts: `${rank}:${number}` });
    return (await parsed(response)) as { begin: number; matches: string[] };
  }

  /** Return the stacks of each rank's threads, as text. */
  async stacks(id: string): Promise<Map<number, string>> {
    const { stacks } = (await parsed(await this.get(['runs', id, 'stacks'], {}))) as {
      stacks: { [rank: string]: string };
    };
    return new Map(Object.entries(stacks).map(([rank, text]) => [Number(rank), text]));
  }

  /** Whether the server has Rankroom's routes. */
  async isThere(signal?: AbortSignal): Promise<boolean> {
    try {
      // The path where a teacher shows runs has routes for those only.
      const response = await (this.place ? this.at('') : this).get(['version'], {}, signal);
      await textOf(response);
      return true;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        return false;
      }
      throw error;
    }
  }

  /** Return the URL of the whole log, for a download. */
  logUrl(id: string, ranks: readonly number[] | null): string {
    return this.download(['runs', id, 'log'], ranks ? { rank: ranks.join(',') } : {});
  }

  /** Return the URL of the timeline as compressed Chrome JSON, which Perfetto opens. */
  traceUrl(id: string): string {
    return this.download(['runs', id, 'trace'], {});
  }

  /** Return a URL for a link, with the token as a parameter: a link sends no header with one. */
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
   * Send a request to a route. Throws ApiError if the server refuses it or does not reply within `patience`
   * milliseconds. Replies to GET requests time out once nothing arrives for a minute, as a connection may be cut
   * silently, for example when a laptop's lid is closed.
   */
  async ask(
    method: 'GET' | 'POST',
    parts: string[],
    query: Query,
    signal?: AbortSignal,
    body?: { [name: string]: string },
    patience = method === 'GET' ? PATIENCE_MS : POST_PATIENCE_MS
  ): Promise<Response> {
    const url = this.url(parts, query);
    const ending = new AbortController();
    const end = (): void => ending.abort();
    signal?.addEventListener('abort', end);
    if (signal?.aborted) {
      end();
    }
    const late = setTimeout(end, patience);
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
      const mayBeDone = method === 'POST' && ending.signal.aborted;
      const added = mayBeDone ? trans.__('; it may have done what you asked for, all the same') : '';
      throw new ApiError(trans.__('the Jupyter server does not respond') + added, 0);
    } finally {
      // Once a reply has begun, all of it is read.
      clearTimeout(late);
      signal?.removeEventListener('abort', end);
    }
    response = method === 'GET' ? watched(response, end) : response;
    this.setClock(Date.parse(response.headers.get('Date') ?? ''), asked);
    if (!response.ok) {
      throw await refusal(response);
    }
    return response;
  }

  /**
   * Correct the estimate of the server's clock. `told` is in whole seconds, taken at some time between the request (at
   * `asked`) and its reply, which a long poll may have delayed: the estimate stays if it is within these bounds.
   */
  private setClock(told: number, asked: number): void {
    if (Number.isFinite(told)) {
      this.ahead = Math.min(Math.max(this.ahead, told - Date.now()), told + 1_000 - asked);
    }
  }
}

/** End a reply of which nothing more arrives: a connection may be cut silently within it, too. */
function watched(response: Response, end: () => void): Response {
  if (!response.body) {
    return response;
  }
  let late = setTimeout(end, PATIENCE_MS);
  const watch = new TransformStream<Uint8Array, Uint8Array>({
    transform: (part, stream) => {
      clearTimeout(late);
      late = setTimeout(end, PATIENCE_MS);
      stream.enqueue(part);
    },
    flush: () => clearTimeout(late)
  });
  return new Response(response.body.pipeThrough(watch), response);
}

/** Return the text of a reply. Throws ApiError if it breaks off. */
export async function textOf(response: Response): Promise<string> {
  try {
    return await response.text();
  } catch {
    throw new ApiError(trans.__('a reply from the Jupyter server was cut off'), 0);
  }
}

/** Return the JSON of a reply. Throws ApiError if it is not JSON, or breaks off. */
export async function parsed(response: Response): Promise<unknown> {
  const text = await textOf(response);
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(loggedOut(), 0); // such as a proxy's login page
  }
}

function loggedOut(): string {
  return trans.__('log in to the Jupyter server again, in another tab or by reloading this page');
}

/** Return the error that a reply describes. */
async function refusal(response: Response): Promise<ApiError> {
  const text = await textOf(response);
  const { status, statusText } = response;
  if (status === 401) {
    return new ApiError(loggedOut(), status, {}, true);
  }
  try {
    const { message, errors } = JSON.parse(text) as { message?: unknown; errors?: { [field: string]: string } };
    // This is all that the Jupyter server itself says to a client that is not, or no longer, logged in.
    if (status === 403 && message === 'Forbidden') {
      return new ApiError(loggedOut(), status, {}, true);
    }
    if (typeof message === 'string' && message) {
      return new ApiError(message, status, errors);
    }
  } catch {
    // Not from a route of ours; a proxy's page says less than its status.
  }
  return new ApiError(trans.__('the server answered %1 %2', status, statusText), status);
}
