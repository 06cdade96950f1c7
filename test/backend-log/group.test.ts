import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { GroupEntry, GroupReader, RunOptions } from '../../src/backend-log/index.js';
import { eventually } from '../harness/poll.js';
import { GroupRig, KEYS } from './rig.js';

let rig: GroupRig;
beforeAll(async () => {
  rig = await GroupRig.start();
});
afterAll(async () => {
  await rig?.[Symbol.asyncDispose]();
});

const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);
const FAST = { leaseMs: 1000, backoffMs: 20 } as const;

async function running(reader: GroupReader): Promise<GroupReader> {
  await reader.ready;
  return reader;
}

test('what is appended is handled once, with all that it was appended with', async () => {
  const log = rig.log(rig.topic());
  const got: GroupEntry[] = [];
  await using _reader = await running(log.group('billing').run((entry) => void got.push(entry), FAST));
  const { position } = await log.append({ event: 'order', data: { n: 1 }, tenant: 'acme', id: 'order-1' });
  await log.append({ event: 'blob', data: { bytes: Buffer.from('abc') } });
  await eventually(() => got.length === 2);
  const common = { tenant: 'acme', id: 'order-1', deliveries: 1, rooms: [], isRedriven: false };
  expect(got[0]?.toJSON()).toMatchObject({ position, event: 'order', data: { n: 1 }, ...common });
  expect(got[1]?.data).toEqual({ bytes: Buffer.from('abc') });
  expect(await log.append({ event: 'order', data: { n: 1 }, tenant: 'acme', id: 'order-1' })).toEqual({
    position,
    duplicate: true,
  });
});

test('members share the entries, nothing is pending at the end, and lag falls to 0', async () => {
  const topic = rig.topic();
  const log = rig.log(topic, { partitions: 3 });
  const by = new Map<number, number[]>();
  const options: RunOptions = { ...FAST, concurrency: 4 };
  const readers = numbers(3).map((member) =>
    log.group('shared', { from: 'earliest' }).run(async (entry) => {
      await new Promise(setImmediate);
      by.set(member, [...(by.get(member) ?? []), (entry.data as { n: number }).n]);
    }, options),
  );
  await Promise.all(readers.map(running));
  await Promise.all(numbers(600).map((n) => log.append({ event: 'e', data: { n }, key: `k${n % 17}` })));
  await eventually(() => [...by.values()].flat().length === 600, { withinMs: 15_000 });
  expect([...by.values()].flat().sort((a, b) => a - b)).toEqual(numbers(600));
  await Promise.all(readers.map((reader) => reader.stop()));
  for (const partition of numbers(3)) expect(await rig.pending(topic, 'shared', partition)).toBe(0);
  for (const partition of numbers(3))
    expect(await rig.admin.xinfo('CONSUMERS', KEYS.partition(topic, partition).stream, 'app:shared')).toEqual([]);
});

describe('a handler', () => {
  test('that throws has its entry again after a back-off, and the others go on', async () => {
    const log = rig.log(rig.topic());
    const seen: string[] = [];
    await using _reader = await running(
      log.group('g').run((entry) => {
        const { n } = entry.data as { n: number };
        seen.push(`${n}.${entry.deliveries}`);
        if (n === 1 && entry.deliveries < 3) throw new Error('not yet');
      }, FAST),
    );
    for (const n of numbers(3)) await log.append({ event: 'e', data: { n } });
    await eventually(() => seen.length === 5);
    expect(seen.filter((text) => text.startsWith('1.'))).toEqual(['1.1', '1.2', '1.3']);
    expect([...seen].sort()).toEqual(['0.1', '1.1', '1.2', '1.3', '2.1']);
  });

  test('that never succeeds makes a dead letter, with why', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    let tries = 0;
    await using _reader = await running(
      log.group('g').run(
        () => {
          tries++;
          throw new Error(`try ${tries}`);
        },
        { ...FAST, maxDeliveries: 3 },
      ),
    );
    const { position } = await log.append({ event: 'poison', data: { n: 1 } });
    const { dead } = KEYS.group(topic, 0, 'g');
    await eventually(async () => (await rig.admin.xlen(dead)) === 1);
    const [[, fields]] = (await rig.admin.xrange(dead, '-', '+')) as [[string, string[]]];
    expect(fields.slice(0, 6)).toEqual(['id', position.split(':')[2], 'n', '3', 'r', 'error']);
    expect(JSON.parse(fields[7] as string)).toMatchObject([
      { reason: 'error', error: 'Error: try 1' },
      { reason: 'error', error: 'Error: try 2' },
      { reason: 'error', error: 'Error: try 3' },
    ]);
    expect([tries, await rig.pending(topic, 'g')]).toEqual([3, 0]);
    expect(await rig.admin.hlen(KEYS.group(topic, 0, 'g').failures)).toBe(0);
  });

  test('that hangs has its time, is told so, and its late return counts for nothing', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    const aborted: unknown[] = [];
    let letGo = (): void => {};
    const deliveries: number[] = [];
    await using _reader = await running(
      log.group('g').run(
        (entry, { signal }) => {
          deliveries.push(entry.deliveries);
          if (entry.deliveries > 1) return undefined;
          signal.addEventListener('abort', () => aborted.push(signal.reason));
          return new Promise<void>((resolve) => {
            letGo = resolve;
          });
        },
        { ...FAST, timeoutMs: 300 },
      ),
    );
    await log.append({ event: 'e' });
    await eventually(() => deliveries.length === 2);
    expect(aborted).toMatchObject([{ code: 'timeout' }]);
    letGo();
    await eventually(() => rig.lines.some(({ event }) => event === 'group_handler_late'));
    expect(deliveries).toEqual([1, 2]);
    await eventually(async () => (await rig.pending(topic, 'g')) === 0);
  });
});

test('entries of one key are handled in order, also when one fails', async () => {
  const topic = rig.topic();
  const log = rig.log(topic, { partitions: 2 });
  const seen = new Map<string, number[]>();
  await using _one = await running(
    log.group('ordered').run(
      async (entry) => {
        const { key, n } = entry.data as { key: string; n: number };
        await new Promise((resolve) => setTimeout(resolve, Math.random() * 5));
        if (n % 10 === 3 && entry.deliveries === 1) throw new Error('once');
        seen.set(key, [...(seen.get(key) ?? []), n]);
      },
      { ...FAST, orderedBy: (entry) => (entry.data as { key: string }).key },
    ),
  );
  const keys = ['a', 'b', 'c', 'd', 'e'];
  for (const n of numbers(40)) await Promise.all(keys.map((key) => log.append({ event: 'e', data: { key, n }, key })));
  await eventually(() => [...seen.values()].flat().length === 200, { withinMs: 20_000 });
  for (const key of keys) expect(seen.get(key)).toEqual(numbers(40));
});

test('a loop acknowledges what it has gone past, and leaving it gives back what is in hand', async () => {
  const topic = rig.topic();
  const log = rig.log(topic);
  const group = log.group('loop', { from: 'earliest' });
  for (const n of numbers(5)) await log.append({ event: 'e', data: n });
  const seen: unknown[] = [];
  for await (const { entry } of group.entries(FAST)) {
    seen.push(entry.data);
    if (entry.data === 2) break;
  }
  expect(seen).toEqual([0, 1, 2]);
  const again: unknown[] = [];
  for await (const { entry, ack } of group.entries(FAST)) {
    again.push(entry.data);
    ack();
    if (again.length === 3) break;
  }
  expect(again.sort()).toEqual([2, 3, 4]);
});
