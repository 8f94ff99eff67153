/** Parse a record: JSON lines in, events out. Lines that are not events are for the caller to count and skip. */
import { REQUIRED, type Event, type Run } from './schema';

/** The newest record version this view reads. */
export const VERSION = 1;

/** NaN and Infinity are not JSON, but some programs write them among numbers. */
const NO_NUMBER = /([[,:]\s*)-?(?:NaN|Infinity)(?=\s*[,\]}])/g;

/** Return the event on one line; 'unknown' for a kind that a newer writer added, null for garbage or half a line. */
export function parseEvent(line: string): Event | 'unknown' | null {
  const value = parse(line);
  if (!isObject(value) || typeof value.kind !== 'string') {
    return null;
  }
  const isKnown = Object.prototype.hasOwnProperty.call(REQUIRED, value.kind);
  // An unknown kind must have the fields that all events have, and `sample` requires only these.
  if (!has(value, REQUIRED[isKnown ? value.kind : 'sample'])) {
    return null;
  }
  return isKnown ? (value as unknown as Event) : 'unknown';
}

/** Whether a line is a metrics event, whose points only the server reads: most of a long record may be such lines. */
export function isMetrics(line: string): boolean {
  return line.startsWith('{"kind":"metrics",') && line.endsWith(']}');
}

/** Parse JSON; undefined if it is none. In spans, NaN and Infinity become null, so that the other numbers stay. */
function parse(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    try {
      return line.includes('"spans"') ? JSON.parse(line.replace(NO_NUMBER, '$1null')) : undefined;
    } catch {
      return undefined;
    }
  }
}

/** The lines of a piece of events.jsonl, without the empty ones. */
export function* linesOf(text: string): Generator<string> {
  let from = 0;
  while (from < text.length) {
    const end = text.indexOf('\n', from);
    const line = text.slice(from, end < 0 ? text.length : end);
    from = end < 0 ? text.length : end + 1;
    if (line.trim() !== '') {
      yield line;
    }
  }
}

/** Return the run that a cell's output holds, and the record version needed to read it; null if it holds none. */
export function parseBundle(value: unknown): { version: number; run: Run } | null {
  if (!isObject(value) || !isObject(value.run)) {
    return null;
  }
  const run = value.run;
  if (!has(run, REQUIRED.Run)) {
    return null;
  }
  const versions = [value.version, run.version].filter((v): v is number => typeof v === 'number');
  return { version: Math.max(VERSION, ...versions), run: run as unknown as Run };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function has(value: Record<string, unknown>, fields: { [field: string]: string }): boolean {
  for (const field in fields) {
    const found = value[field];
    const type = Array.isArray(found) ? 'array' : found === null ? 'null' : typeof found;
    if (type !== fields[field]) {
      return false;
    }
  }
  return true;
}
