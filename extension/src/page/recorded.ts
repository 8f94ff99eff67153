/** A record inside the page: answers the requests that a run's view sends to a Jupyter server. */
import type { MetricsAnswer } from '../metrics/answer';
import { trans } from '../translation';

/** Runs that the page's run is compared with at most, as in metrics/comparison.ts. */
const MOST_OTHERS = 4;
/** Content types of the run's routes that the page answers, by the last part of the path; '' is the run itself. */
const TYPES: { [route: string]: string } = {
  '': 'application/json',
  profile: 'application/json',
  collectives: 'application/json',
  overview: 'application/x-ndjson',
  events: 'application/x-ndjson',
  metrics: 'application/json',
  log: 'text/plain; charset=utf-8',
  trace: 'application/gzip'
};
const NEWLINE = 10;

export class Recorded {
  private whole = new Map<string, Promise<Uint8Array>>();

  /** `part(name)` returns a part of the record, gzip-compressed, as base64; '' if it is missing. */
  constructor(private part: (name: string) => string) {}

  /** Settings that make `ServerConnection` send its requests here. */
  get settings(): { baseUrl: string; appendToken: boolean; token: string; fetch: (url: unknown) => Promise<Response> } {
    return { baseUrl: '/', appendToken: false, token: '', fetch: url => this.answer(String(url)) };
  }

  /** Return the response to a request for `url`, whose path ends with `runs/ID/ROUTE`. */
  async answer(url: string): Promise<Response> {
    const { pathname, searchParams } = new URL(url, 'http://page/');
    const [, id = '', route = ''] = /\/runs\/([^/]+)\/?([^/]*)$/.exec(pathname) ?? [];
    if (!id) {
      return this.runs();
    }
    const other = await this.numberOf(decodeURIComponent(id));
    if (other) {
      return this.ofOther(other, route, searchParams);
    }
    if (!(route in TYPES)) {
      return refused(404, trans.__('this page holds only a record: there are no live ranks'));
    }
    if (route === 'events') {
      return this.events(searchParams);
    }
    if (route === 'metrics') {
      return this.metrics(searchParams, '');
    }
    if (route === 'trace') {
      return answered(unpacked(this.part(route)), TYPES[route]);
    }
    const data = await this.get(route);
    const ranks = route === 'log' ? searchParams.get('rank') : null;
    return answered(ranks ? linesOf(data, ranks) : data, TYPES[route]);
  }

  /** Return whole lines from a byte on, as the server's route does. */
  private async events(query: URLSearchParams): Promise<Response> {
    const data = await this.get('events');
    const { state } = JSON.parse(new TextDecoder().decode(await this.get(''))) as { state: string };
    const after = Math.min(Number(query.get('after') ?? 0), data.length);
    const limit = Math.max(1, Number(query.get('limit') ?? data.length));
    // A line longer than the limit is returned whole.
    let next = data.lastIndexOf(NEWLINE, after + limit - 1) + 1;
    if (next <= after) {
      next = data.indexOf(NEWLINE, after) + 1 || data.length;
    }
    return answered(data.subarray(after, next), TYPES.events, {
      'X-Rankroom-Next': String(next),
      'X-Rankroom-Size': String(data.length),
      'X-Rankroom-State': state,
      'X-Rankroom-Changed': 'kept'
    });
  }

  /** Return the other runs whose metrics are in the page. */
  private async runs(): Promise<Response> {
    const parts = await Promise.all(Array.from({ length: MOST_OTHERS }, (_, i) => this.get(`run_${i + 1}`)));
    const runs = parts.filter(part => part.length).map(part => JSON.parse(new TextDecoder().decode(part)) as unknown);
    return answered(new TextEncoder().encode(JSON.stringify({ runs })), TYPES['']);
  }

  /** Return the position of a run, from 1, among those that the page's run is compared with; 0 for the page's run. */
  private async numberOf(id: string): Promise<number> {
    const { compare = [] } = JSON.parse(new TextDecoder().decode(await this.get(''))) as { compare?: string[] };
    return compare.indexOf(id) + 1;
  }

  /**
   * Return a response about a compared run: the page has only the run and its metrics, or nothing if it was gone when
   * the page was made.
   */
  private async ofOther(other: number, route: string, query: URLSearchParams): Promise<Response> {
    const run = await this.get(`run_${other}`);
    if (run.length === 0 || !['', 'metrics'].includes(route)) {
      return refused(404, trans.__('the run is not in this page'));
    }
    return route ? this.metrics(query, `_${other}`) : answered(run, TYPES['']);
  }

  /** Return curves of some names in a range, with only the points that the page holds. */
  private async metrics(query: URLSearchParams, suffix: string): Promise<Response> {
    const data = await this.get(`metrics_${query.get('axis') === 'time' ? 'time' : 'step'}${suffix}`);
    const found = JSON.parse(new TextDecoder().decode(data)) as MetricsAnswer;
    const names = query.getAll('name');
    const [from, to] = [Number(query.get('from') ?? -Infinity), Number(query.get('to') ?? Infinity)];
    const isAsked = ({ name }: { name: string }): boolean => names.length === 0 || names.includes(name);
    const isInside = (x: number): boolean => x >= from && x <= to;
    const curves = found.curves.filter(isAsked).map(curve => {
      const at = curve.x.flatMap((x, i) => (isInside(x) ? [i] : []));
      const bad = curve.bad?.filter(({ x }) => isInside(x));
      return { ...curve, ...columns(curve, at), bad };
    });
    const over_ranks = found.over_ranks.filter(isAsked).map(curve => {
      const at = curve.x.flatMap((x, i) => (isInside(x) ? [i] : []));
      return { ...curve, ...columns(curve, at) };
    });
    const answer: MetricsAnswer = { ...found, curves, over_ranks };
    return answered(new TextEncoder().encode(JSON.stringify(answer)), TYPES.metrics);
  }

  private get(name: string): Promise<Uint8Array> {
    const known = this.whole.get(name) ?? gunzipped(unpacked(this.part(name)));
    this.whole.set(name, known);
    return known;
  }
}

/** Return the columns of a curve at these indices. */
function columns<T extends MetricsAnswer['over_ranks'][number]>(
  { x, mean, low, high, count }: T,
  at: number[]
): Pick<T, 'x' | 'mean' | 'low' | 'high' | 'count'> {
  const of = <V>(column: readonly V[]): V[] => at.map(i => column[i]);
  return { x: of(x), mean: of(mean), low: of(low), high: of(high), count: of(count) };
}

function answered(data: Uint8Array, type: string, headers: { [name: string]: string } = {}): Response {
  return new Response(data, { headers: { 'Content-Type': type, ...headers } });
}

function refused(status: number, message: string): Response {
  return new Response(JSON.stringify({ message }), { status });
}

/** Return the lines of these ranks from a log in which each line begins with its rank. */
function linesOf(log: Uint8Array, ranks: string): Uint8Array {
  const wanted = new Set(ranks.split(','));
  const lines = new TextDecoder().decode(log).split('\n');
  const kept = lines.filter(line => wanted.has(line.slice(0, line.indexOf(' '))));
  return new TextEncoder().encode(kept.map(line => `${line}\n`).join(''));
}

function unpacked(base64: string): Uint8Array {
  const text = atob(base64);
  const data = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) {
    data[i] = text.charCodeAt(i);
  }
  return data;
}

async function gunzipped(data: Uint8Array): Promise<Uint8Array> {
  if (data.length === 0) {
    return data;
  }
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
