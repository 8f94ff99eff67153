import { strict as assert } from 'node:assert';
import { test } from 'node:test';

import { percent, scaleFor, size } from '../src/timeline/amounts';
import type { Profile } from '../src/schema';
import { memoryFacts, memoryTable } from '../src/timeline/rankmemory';
import { asCsv, asText, kindTable, rankTable, sorted, stragglerTable } from '../src/timeline/tables';
import { slowest } from '../src/words';

const profile: Profile = {
  wall: 2_000_000,
  ranks: [
    { rank: 0, compute: 1_000_000, data: 0, waiting: 900_000, exposed: 90_000, idle: 10_000, communication: 100_000 },
    { rank: 1, compute: 1_900_000, data: 0, waiting: 0, exposed: 99_500, idle: 500, communication: 99_500 }
  ],
  kinds: [
    { library: 'dist', op: 'all_reduce', calls: 12_000, bytes: 4096, time: 1_000_000, wait: 450_000, transfer: 550_000, bandwidth: 8.9e7 },
    { library: '', op: '=cmd()', calls: 1, bytes: null, time: 5, wait: 0, transfer: 5, bandwidth: null }
  ],
  stragglers: [{ rank: 1, last: 11_900, of: 12_001, cost: 900_000 }],
  named: [1],
  diagnosis: 'rank 1 arrives last',
  dropped: {}
};

test('times in a column share a unit and the number of decimals', () => {
  const seen = (most: number): string[] => {
    const { unit, text } = scaleFor(most);
    return [most, most / 3, 0].map(time => `${text(time)} ${unit}`);
  };
  assert.deepEqual(seen(900), ['900 µs', '300 µs', '0 µs']);
  assert.deepEqual(seen(90_000), ['90.00 ms', '30.00 ms', '0.00 ms']);
  assert.deepEqual(seen(900_000), ['900.0 ms', '300.0 ms', '0.0 ms']);
  assert.deepEqual(seen(9_000_000), ['9.000 s', '3.000 s', '0.000 s']);
  assert.deepEqual(seen(9e9), ['9,000 s', '3,000 s', '0 s']);
});

test('sizes are formatted for reading', () => {
  assert.deepEqual([0, 830, 999.6, 12_500, 1.2e9, 5e13].map(size), ['0 B', '830 B', '1.0 kB', '12.5 kB', '1.2 GB', '50000.0 GB']);
});

test('shares are rounded percentages, and a share of nothing is 0 %', () => {
  assert.deepEqual([percent(1, 3), percent(2, 2), percent(0, 0)], ['33 %', '100 %', '0 %']);
});

test('rows are sorted by any column, with unknown values last', () => {
  const { columns, rows } = kindTable(profile);
  const by = (key: string, isDescending: boolean): string[] =>
    sorted(rows, columns.find(column => column.key === key)!, isDescending).map(({ op }) => op);
  assert.deepEqual(by('bytes', false), ['all_reduce', '=cmd()']);
  assert.deepEqual(by('bytes', true), ['all_reduce', '=cmd()']);
  assert.deepEqual(by('calls', false), ['=cmd()', 'all_reduce']);
  assert.deepEqual(by('collective', true), ['dist', ''].map(library => rows.find(row => row.library === library)!.op));
});

test('tables are exported as aligned text', () => {
  assert.equal(
    asText(stragglerTable(profile)),
    [
      'rank         arrives last in  cost (another rank waits)',
      '───────────────────────────────────────────────────────',
      '1     11,900 of 12,001  99 %             900.0 ms  45 %',
      ''
    ].join('\n')
  );
  assert.match(asText(rankTable(profile)).split('\n')[2], /^0 +1\.000 s +50 % +0\.000 s +0 % +0\.900 s +45 %/);
});

test('tables are exported as CSV with escaped formulas', () => {
  assert.equal(
    asCsv(kindTable(profile)),
    'collective,calls,bytes (B),time (µs),wait (µs),transfer (µs),bandwidth (B/s)\n' +
      "dist all_reduce,12000,4096,1000000,450000,550000,89000000\n'=cmd(),1,,5,0,5,\n"
  );
  assert.match(asCsv(rankTable(profile)), /^rank,compute \(µs\),.*\n0,1000000,0,900000,90000,10000,10000\n/);
});

test('the header names the ranks that others waited for', () => {
  assert.equal(slowest(profile), 'slowest: rank 1, others waited 45 % of the run');
  assert.equal(slowest({ ...profile, named: [] }), '');
  const three = [3, 2, 0].map(rank => ({ rank, last: 4, of: 9, cost: 400_000 }));
  assert.equal(slowest({ ...profile, named: [2, 3], stragglers: three }), 'slowest: ranks 2–3, others waited 40 % of the run');
});

test('memory facts state the peak and a steady rise', () => {
  const row = { first: 1e9, last: 1e9, peak: 1e9, rise: 0, gpu_peak: null };
  const rows = [{ ...row, rank: 0 }, { ...row, rank: 1, last: 2e9, peak: 2e9, rise: 7e8 }];
  assert.deepEqual(memoryFacts(rows, undefined), [
    'peak memory 1.0 GB to 2.0 GB per rank', 'memory of rank 1 rises throughout the run, by 700.0 MB on rank 1'
  ]);
  assert.deepEqual(memoryFacts([{ ...row, rank: 0, rise: 31e6, gpu_peak: 3e9 }], undefined), [
    'peak memory 1.0 GB per rank', '3.0 GB on its GPU'
  ]);
  assert.deepEqual(memoryFacts([], undefined), []);
  assert.equal(
    asCsv(memoryTable([{ ...row, rank: 0, rise: null, gpu_peak: 3e9 }])),
    'rank,first (B),last (B),peak (B),rise (B),gpu_peak (B)\n0,1000000000,1000000000,1000000000,,3000000000\n'
  );
  assert.match(asText(memoryTable(rows)), /^1 +1\.0 GB +2\.0 GB +2\.0 GB +700\.0 MB$/m);
});
