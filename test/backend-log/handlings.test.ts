import { expect, test } from 'vitest';
import { type GroupRecord, type Judgement, judge } from './handlings.js';
import type { Note } from './member-process.js';

type Step = readonly [at: number, what: 'begin' | 'end' | 'fail', offset: number, member?: string, deliveries?: number];

/** Four entries of one key in partition 0. Members `a` and `b` have a lease from 0 to 2,000, `c` has one from 500 on. */
function record(steps: readonly Step[], more: Partial<GroupRecord> = {}): GroupRecord {
  return {
    isOrdered: true,
    appended: [1, 2, 3, 4].map((offset) => ({ entry: `0/${offset}`, key: 'k' })),
    notes: steps.map(
      ([at, what, offset, member = 'a', deliveries = 1]): Note => ({
        ...{ at, what, offset, member, deliveries },
        ...{ name: member, partition: 0, key: 'k' },
      }),
    ),
    pauses: [],
    leases: new Map([
      ['a', [{ at: 0, until: 2000 }]],
      ['b', [{ at: 0, until: 2000 }]],
      ['c', [{ at: 500, until: 90_000 }]],
    ]),
    acknowledged: new Map(),
    blind: [],
    ...more,
  };
}

const once = (offset: number, at: number, member = 'a'): readonly Step[] => [
  [at, 'begin', offset, member],
  [at + 5, 'end', offset, member],
];
const ALL = [1, 2, 3, 4].flatMap((offset) => once(offset, offset * 100));

/** What is held against a run, by its name. */
function faultsOf(steps: readonly Step[], more: Partial<GroupRecord> = {}): Partial<Record<keyof Judgement, number>> {
  const counts: Partial<Record<keyof Judgement, number>> = {};
  for (const [name, found] of Object.entries(judge(record(steps, more))))
    if (Array.isArray(found) && found.length > 0) counts[name as keyof Judgement] = found.length;
  return counts;
}

test('nothing is held against a run in which each was handled once, in order', () => {
  expect(faultsOf(ALL)).toEqual({});
  expect(judge(record(ALL)).handled).toBe(4);
});

test('an entry that was never handled to its end is lost', () => {
  expect(faultsOf(ALL.slice(0, 6))).toEqual({ lost: 1 });
  expect(faultsOf([...ALL.slice(0, 7), [410, 'fail', 4]])).toEqual({ lost: 1 });
});

test('an entry that was never appended is a phantom', () => {
  expect(faultsOf([...ALL, ...once(5, 900)])).toEqual({ phantoms: 1 });
});

test('two that changed places are out of order, in an ordered group only', () => {
  const swapped = [...once(1, 100), ...once(3, 200), ...once(2, 300), ...once(4, 400)];
  expect(faultsOf(swapped)).toEqual({ outOfOrder: 1 });
  expect(faultsOf(swapped, { isOrdered: false })).toEqual({});
});

test('one that begins in its predecessor is out of order, and overlaps it', () => {
  const [first, end] = once(1, 100) as [Step, Step];
  const [second, ...rest] = ALL.slice(2) as [Step, ...Step[]];
  expect(faultsOf([first, second, end, ...rest])).toEqual({ outOfOrder: 1, overlapped: 1 });
});

test('one that begins in an older handling of its predecessor overlaps it, unless who is at that has lost its lease', () => {
  const again = (at: number): readonly Step[] => [
    [150, 'begin', 1, 'a'],
    [at, 'begin', 1, 'c', 2],
    [at + 5, 'end', 1, 'c', 2],
    ...once(2, at + 10, 'c'),
    ...once(3, at + 20, 'c'),
    ...once(4, at + 30, 'c'),
  ];
  expect(faultsOf(again(2500))).toEqual({});
  // one for each that was begun while the first was at work: itself again, and the three behind it
  expect(faultsOf(again(1500))).toEqual({ overlapped: 4, unexplained: 1 });
});

test('handling again is explained by a failure, by a lease that ended, or by nobody having seen Redis', () => {
  const again = (at: number): readonly Step[] => [...ALL, [at, 'begin', 4, 'c', 2], [at + 5, 'end', 4, 'c', 2]];
  expect(faultsOf(again(1500))).toEqual({ unexplained: 1 });
  expect(judge(record(again(2500))).again).toEqual({ failed: 0, leaseEnded: 1, unseen: 0 });
  expect(judge(record(again(1500), { blind: [{ from: 1400, to: 1600 }] })).again.unseen).toBe(1);
  const failed: readonly Step[] = [
    ...ALL.slice(0, 7),
    [405, 'fail', 4],
    [1500, 'begin', 4, 'a', 2],
    [1505, 'end', 4, 'a', 2],
  ];
  expect(faultsOf(failed)).toEqual({});
  expect(judge(record(failed)).again.failed).toBe(1);
});

test('nothing explains that what was acknowledged is handled again', () => {
  const again: readonly Step[] = [...ALL, [2500, 'begin', 4, 'c', 2], [2505, 'end', 4, 'c', 2]];
  expect(faultsOf(again, { acknowledged: new Map([['0/4', 410]]) })).toEqual({ unexplained: 1 });
  expect(faultsOf(again, { acknowledged: new Map([['0/4', 2510]]) })).toEqual({});
});

test('one delivery number for two handlings is no fence', () => {
  expect(faultsOf([...ALL, [2500, 'begin', 4, 'c', 1], [2505, 'end', 4, 'c', 1]])).toEqual({ unfenced: 1 });
});

test('who has no lease begins nothing, but for what it was about to do as it was paused', () => {
  const late: readonly Step[] = [...ALL.slice(0, 6), ...once(4, 3000)];
  expect(faultsOf(late)).toEqual({ withoutLease: 1 });
  const paused = { pauses: [{ name: 'a', from: 310, to: 2990 }] };
  expect(faultsOf(late, paused)).toEqual({});
  expect(judge(record(late, paused)).caughtByPause).toBe(1);
  const two: readonly Step[] = [...ALL.slice(0, 4), ...once(3, 3000), ...once(4, 3010)];
  expect(faultsOf(two, paused)).toEqual({ withoutLease: 1 });
});
