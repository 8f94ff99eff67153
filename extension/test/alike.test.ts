/** Errors of several ranks that are shown as one. */
import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { alike } from '../src/run/alike';
import type { ErrorEvent } from '../src/schema';

function error(rank: number, evalue: string, line?: number): ErrorEvent {
  return { kind: 'error', rank, seq: 0, t: 0, ename: 'ValueError', evalue, traceback: [], cell_line: line };
}

test('errors with the same text and cell line are merged, each rank once', () => {
  const groups = alike(
    [error(3, 'bad', 5), error(1, 'bad', 7), error(2, 'bad', 5), error(3, 'bad', 5), error(0, 'other', 5), error(4, 'bad')],
    ({ evalue }) => evalue
  );
  assert.deepEqual(
    groups.map(({ words, error, ranks }) => [words, error.cell_line, ranks]),
    [['bad', 5, [2, 3]], ['bad', 7, [1]], ['other', 5, [0]], ['bad', undefined, [4]]]
  );
  assert.equal(new Set(groups.map(({ key }) => key)).size, 4);
});
