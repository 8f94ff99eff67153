/** Reading a record: JSON lines in, events out; what is not an event is counted and passed over. */
import { REQUIRED, type Event, type Run } from './schema';

/** The newest record version this view reads. */
export const VERSION = 1;

/** Not JSON, but what some programs write among numbers. */
const NO_NUMBER = /([[,:]\s*)-?(?:NaN|Infinity)(?=\s*[,\]}])/g;

/** The event on one line; null for garbage, half a line, and kinds that a newer writer added. */
export function parseEvent(line: string): Event | 'unknown' | null {
  const value = parse(line);
  if (!isObject(value) || typeof value.kind !== 'string') {
    return null;
  }
  const isKnown = Object.prototype.hasOwnProperty.call(REQUIRED, value.kind);
  // Those of the events that say least, which are those of all.
  if (!has(value, REQUIRED[isKnown ? value.kind : 'sample'])) {
    return null;
  }
  return isKnown ? (value as unknown as Event) : 'unknown';
}

/** Whether a line is an event of metrics, whose points are the server's to read: most of a long record may be such. */
export function isMetrics(line: string): boolean {
  return line.startsWith('{"kind":"metrics",') && line.endsWith(']}');
}

/** JSON, or undefined; among numbers a NaN becomes null, so that the numbers around it are kept. */
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

/** The run that a cell's output holds, or null if it holds none; `version` tells how to read it. */
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
