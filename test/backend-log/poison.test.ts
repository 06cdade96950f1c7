import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { GroupEntry } from '../../src/backend-log/index.js';
import { GroupAdmin, LogAccess } from '../../src/log/index.js';
import { eventually } from '../harness/poll.js';
import { GroupRig, KEYS } from './rig.js';
import { put, range, Witness, type WitnessOptions } from './witness.js';

let rig: GroupRig;
let access: LogAccess;
let groups: GroupAdmin;
beforeAll(async () => {
  rig = await GroupRig.start();
  access = new LogAccess(rig.redis.url, KEYS, { maxEntries: 100_000, maxBytes: 2 ** 26, idWindowMs: 120_000 });
  await access.whenUp(5000);
  groups = new GroupAdmin(access);
});
afterAll(async () => {
  await access?.[Symbol.asyncDispose]();
  await rig?.[Symbol.asyncDispose]();
});

const SLOW = { withinMs: 20_000 } as const;
const POISON = 30;
const ENTRIES = 120;
const BACKOFF_MS = 400;

const numberOf = (entry: GroupEntry): number => (entry.data as { n: number }).n;
const keyOf = (n: number): string => `k${n % 8}`;

interface Trial {
  readonly topic: string;
  readonly poisoned: readonly number[];
  /** From append to handler, at worst, of entries that are not behind the poisoned one. */
  readonly worstMs: number;
}

/** A steady trickle, one entry of which may never be handled. */
async function trial(isPoisoned: boolean, options: WitnessOptions): Promise<Trial> {
  const topic = rig.topic();
  const log = rig.log(topic);
  const deliveries: number[] = [];
  await using witness = await Witness.start(log, 'g', {
    ...{ concurrency: 2, maxDeliveries: 4, backoffMs: BACKOFF_MS, maxBackoffMs: BACKOFF_MS },
    handler: (entry) => {
      if (!isPoisoned || numberOf(entry) !== POISON) return;
      deliveries.push(entry.deliveries);
      throw new Error('never');
    },
    ...options,
  });
  const appendedAt: number[] = [];
  for (const n of range(0, ENTRIES)) {
    appendedAt.push(Date.now());
    await put(log, [n], keyOf);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  await eventually(() => expect(new Set(witness.numbers).size).toBe(ENTRIES), SLOW);
  if (isPoisoned) await eventually(async () => (await rig.admin.xlen(KEYS.group(topic, 0, 'g').dead)) === 1, SLOW);
  await eventually(async () => (await rig.pending(topic, 'g')) === 0, SLOW);
  const isBehind = (n: number): boolean => options.orderedBy !== undefined && keyOf(n) === keyOf(POISON);
  const delays = witness.seen
    .filter(({ n }) => n !== POISON && !isBehind(n))
    .map(({ n, at }) => at - (appendedAt[n] ?? at));
  expect(witness.numbers.filter((n) => n !== POISON)).toHaveLength(ENTRIES - 1);
  return { topic, poisoned: deliveries, worstMs: Math.max(...delays) };
}

describe.each([
  ['a shared group', {}],
  ['an ordered group', { orderedBy: (entry: GroupEntry) => (entry.data as { key: string }).key }],
])('an entry of %s that is never handled', (_mode, options) => {
  test('has its deliveries, becomes a dead letter, and holds the others up by no more than a back-off', async () => {
    const control = await trial(false, options);
    const { topic, poisoned, worstMs } = await trial(true, options);
    expect(poisoned).toEqual([1, 2, 3, 4]);
    expect(worstMs).toBeLessThanOrEqual(control.worstMs + BACKOFF_MS);
    const letters = [];
    for await (const letter of groups.deadLetters(topic, 'g').letters()) letters.push(letter);
    expect(letters).toMatchObject([
      { deliveries: 4, reason: 'error', failures: range(0, 4).map(() => ({ reason: 'error' })) },
    ]);
  });

  test('comes back once when it is redriven', async () => {
    const { topic } = await trial(true, options);
    const letters = groups.deadLetters(topic, 'g');
    await using witness = await Witness.start(rig.log(topic), 'g', options);
    const [first, second] = await Promise.all([letters.redrive('all'), letters.redrive('all')]);
    expect([...first, ...second]).toHaveLength(1);
    await eventually(() => expect(witness.seen).toMatchObject([{ n: POISON, isRedriven: true, deliveries: 1 }]), SLOW);
    await put(rig.log(topic), [ENTRIES]);
    await eventually(() => expect(witness.numbers).toEqual([POISON, ENTRIES]), SLOW);
    const { dead, redriven } = KEYS.group(topic, 0, 'g');
    await eventually(async () => expect([await rig.admin.xlen(dead), await rig.admin.xlen(redriven)]).toEqual([0, 0]));
  });
});

test('a poisoned entry of a batch is found, and the others of it are handled', async () => {
  const topic = rig.topic();
  const log = rig.log(topic);
  await put(log, range(0, 40));
  const handled: number[] = [];
  const sizes: number[] = [];
  const poison = (entry: GroupEntry): boolean => numberOf(entry) === 7;
  const reader = log.group('g', { from: 'earliest' }).run(
    (entries) => {
      sizes.push(entries.length);
      if (entries.some(poison)) throw new Error('never');
      handled.push(...entries.map(numberOf));
    },
    { batch: 10, concurrency: 2, maxDeliveries: 3, backoffMs: 20, maxBackoffMs: 100, leaseMs: 1000 },
  );
  try {
    const { dead } = KEYS.group(topic, 0, 'g');
    await eventually(async () => (await rig.admin.xlen(dead)) === 1, SLOW);
    await eventually(() => expect(handled).toHaveLength(39), SLOW);
    expect([...handled].sort((a, b) => a - b)).toEqual(range(0, 40).filter((n) => n !== 7));
    expect(Math.max(...sizes)).toBeGreaterThan(1);
    await eventually(async () => (await rig.pending(topic, 'g')) === 0);
  } finally {
    await reader.stop();
  }
});

test('two groups of a topic have each all entries, and what one fails at is no concern of the other', async () => {
  const topic = rig.topic();
  const log = rig.log(topic, { partitions: 2 });
  await using failing = await Witness.start(log, 'failing', {
    maxDeliveries: 2,
    handler: () => {
      throw new Error('never');
    },
  });
  await using sound = await Witness.start(log, 'sound');
  await put(log, range(0, 100), keyOf);
  await eventually(() => expect([...sound.numbers].sort((a, b) => a - b)).toEqual(range(0, 100)), SLOW);
  await eventually(
    async () => expect(await groups.deadLetters(topic, 'failing').count()).toMatchObject({ deadLetters: 100 }),
    SLOW,
  );
  expect(await groups.deadLetters(topic, 'sound').count()).toEqual({ deadLetters: 0, dropped: 0 });
  expect(new Set(failing.numbers).size).toBe(100);
  for (const partition of [0, 1])
    for (const group of ['failing', 'sound'])
      await eventually(async () => (await rig.pending(topic, group, partition)) === 0);
});
