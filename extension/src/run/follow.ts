/** Read a record up to its moving end, while a view of it is visible. */
import { type Api, ApiError, type Chunk } from '../api';
import { VERSION } from '../record';
import type { Run } from '../schema';
import { Overview } from '../timeline/overview';
import { trans } from '../translation';
import type { RunModel } from './model';
import { inSlices } from './slices';

/** Timeout of a long poll in seconds; proxies cut idle requests after about a minute. */
const WAIT = 25;
/** The most long polls at once: a browser has six connections to a server, and other requests need some too. */
const WAITING_AT_ONCE = 2;
const TURN = 1_000;
/** Milliseconds between two checks of a run that is lost, or whose record is not here yet. */
const LOST_PAUSE = 10_000;
const LONGEST_PAUSE = 30_000;

const NO_SERVER = (): string =>
  trans.__('The Rankroom server extension is not enabled: run `jupyter server extension enable rankroom` and restart JupyterLab. If it is enabled, the server’s log says why it did not load.');
const NEWER = (version: number): string =>
  trans.__(
    'This record was written by a newer Rankroom (record version %1, this view reads up to %2): upgrade with `pip install -U rankroom`.',
    version, VERSION
  );

/** Bytes per piece: large enough for a long record, small enough to be processed while the next one is transferred. */
const PIECE = 4 << 20;
/** The first reply tells the size of the record: if longer than LONG, it may have an overview, which is read first. */
const FIRST_PIECE = 256 << 10;
const LONG = 4 << 20;

let waiting = 0;

/** How far the record has been read. */
interface Place {
  /** Whether the last piece reached the end of the record. */
  isCaughtUp: boolean;
  /** Identifies the version of run.json that the model has; '' if unknown. */
  changed: string;
  /** The next piece, requested while the one before it is processed. */
  ahead: Promise<Chunk> | null;
}

/** Whether there is nothing more to read. A lost run may go on: the process that writes its record may come back. */
export function isRead({ isComplete, run }: RunModel): boolean {
  return isComplete && run.state !== 'lost';
}

/** Whether the refusal is final. The record of a live run may still arrive, after a slow connection or a full disk. */
function isRefused({ refusal, run, isLive }: RunModel): boolean {
  return refusal !== '' && (!isLive || run.version > VERSION);
}

/** Take in what the server says of the run. A run that has ended does not run again: a full disk may keep its end back. */
function update(model: RunModel, run: Run): void {
  if (run.state !== 'running' || model.isLive || model.run.state === 'lost') {
    model.run = run;
  }
}

/** Follow the run until it is complete or refused, or until `signal` aborts because it is no longer shown. */
export async function follow(model: RunModel, api: Api, signal: AbortSignal): Promise<void> {
  let failures = 0;
  let place: Place = { isCaughtUp: false, changed: '', ahead: null };
  let isKnown = false;
  while (!signal.aborted && !isRead(model) && !isRefused(model)) {
    try {
      if (model.isComplete) {
        await rest(LOST_PAUSE, signal);
        const run = await api.run(model.id, signal);
        if (run.state !== 'lost') {
          model.forget();
          model.run = run;
          place = { isCaughtUp: false, changed: '', ahead: null };
        }
      } else {
        if (!isKnown) {
          update(model, await api.run(model.id, signal));
          isKnown = true;
        }
        if (model.run.version > VERSION) {
          model.refusal = NEWER(model.run.version);
        } else {
          await readOn(model, api, place, signal);
          model.refusal = '';
        }
      }
      failures = 0;
      model.trouble = '';
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      failures += 1;
      place.ahead = null;
      // No long poll next: learn at once whether the server replies again, not when there is something new.
      place.isCaughtUp = false;
      await explain(error, model, api, failures, signal);
    }
    model.notify();
  }
}

/** Read the next piece, and the run itself if run.json has changed. */
async function readOn(model: RunModel, api: Api, place: Place, signal: AbortSignal): Promise<void> {
  if (place.isCaughtUp && waiting >= WAITING_AT_ONCE) {
    await rest(TURN, signal);
  }
  const wait = place.isCaughtUp && waiting < WAITING_AT_ONCE ? WAIT : 0;
  waiting += wait ? 1 : 0;
  const asked = place.ahead ?? api.events(model.id, model.read, wait, place.changed, model.read ? PIECE : FIRST_PIECE, signal);
  place.ahead = null;
  const chunk = await asked.finally(() => (waiting -= wait ? 1 : 0));
  if (model.read === 0 && chunk.state !== 'running' && chunk.size > LONG) {
    await readOverview(model, api, signal);
  }
  if (chunk.next < chunk.size) {
    place.ahead = api.events(model.id, chunk.next, 0, chunk.changed, PIECE, signal);
    // The next call awaits it and gets its error; if reading ends before, the rejection must not be unhandled.
    place.ahead.catch(() => undefined);
  }
  // Nothing is aborted from here on: what the model takes in must be counted as read.
  await inSlices(model.take(chunk.text));
  model.read = chunk.next;
  model.size = chunk.size;
  place.isCaughtUp = chunk.next >= chunk.size;
  const isOver = chunk.state !== 'running' && place.isCaughtUp;
  if (isOver || chunk.changed !== place.changed) {
    update(model, await api.run(model.id));
    place.changed = chunk.changed;
  }
  // The writer of a lost run may have come back meanwhile.
  if (isOver && !model.isLive) {
    model.complete();
  }
}

/** Read a coarse timeline, to show something soon. It is optional: servers of earlier versions have none. */
async function readOverview(model: RunModel, api: Api, signal: AbortSignal): Promise<void> {
  try {
    model.overview = await inSlices(Overview.read(await api.overview(model.id, signal)));
    model.notify();
  } catch (error) {
    if (signal.aborted) {
      throw error;
    }
  }
}

/** Report why the record cannot be read, and wait before the next attempt. */
async function explain(
  error: unknown,
  model: RunModel,
  api: Api,
  failures: number,
  signal: AbortSignal
): Promise<void> {
  if (error instanceof ApiError && error.status === 404) {
    model.refusal = (await isThere(api, signal)) ? `${error.message}.` : NO_SERVER();
    model.notify();
    if (!isRefused(model)) {
      await rest(LOST_PAUSE, signal);
      if (!model.isLive) {
        model.refusal = ''; // it has ended meanwhile, so that its record may be there now
      }
    }
    return;
  }
  const pause = Math.min(LONGEST_PAUSE, 500 * 2 ** failures);
  // A reply that breaks off raises an error of the browser or of the parser.
  const why = error instanceof ApiError ? error.message : trans.__('a reply from the Jupyter server was cut off');
  model.trouble = trans.__('%1: retrying in %2 s', why, Math.ceil(pause / 1000));
  model.notify();
  await rest(pause, signal);
}

async function isThere(api: Api, signal: AbortSignal): Promise<boolean> {
  try {
    return await api.isThere(signal);
  } catch {
    return true;
  }
}

/** Resolve after a time, or as soon as the signal aborts. */
function rest(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener('abort', end);
  });
}
