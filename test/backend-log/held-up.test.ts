import { Registry } from 'prom-client';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { GroupReader, Log, RunOptions } from '../../src/backend-log/index.js';
import { sleep } from '../../src/core/sleep.js';
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
const ORDERED: RunOptions = { ...FAST, orderedBy: () => 'one' };

const append = (log: Log, count: number): Promise<unknown> =>
  Promise.all(numbers(count).map((n) => log.append({ event: 'e', data: n })));

async function ready(reader: GroupReader): Promise<GroupReader> {
  await reader.ready;
  return reader;
}

describe.concurrent('nothing holds up a group', () => {
  test('an error text that ends in half a character', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await append(log, 3);
    const seen: unknown[] = [];
    const fails = ({ data }: { data: unknown }): void => {
      seen.push(data);
      if (data === 1) throw new Error(`${'x'.repeat(992)}😀 and more`);
    };
    await using _member = await ready(
      log.group('g', { from: 'earliest' }).run(fails, { ...ORDERED, maxDeliveries: 3 }),
    );
    await eventually(() => expect(seen).toEqual([0, 1, 1, 1, 2]), { withinMs: 20_000 });
    expect(await rig.admin.xlen(KEYS.group(topic, 0, 'g').dead)).toBe(1);
  });

  test('a pause in the middle of a key, for a moment or for long', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    const seen: unknown[] = [];
    const slow = async ({ data }: { data: unknown }): Promise<void> => {
      await sleep(4);
      seen.push(data);
    };
    await using member = await ready(log.group('g', { from: 'earliest' }).run(slow, ORDERED));
    await append(log, 900);
    // short ones, so that some meet an answer on its way
    for (const pauseMs of [...numbers(30).map((n) => n % 4), 1500, 50, 1500]) {
      const before = seen.length;
      await eventually(() => seen.length > before + 5, { withinMs: 20_000 });
      member.pause();
      await sleep(pauseMs);
      member.resume();
    }
    await eventually(() => expect(seen).toEqual(numbers(900)), { withinMs: 30_000 });
    await eventually(async () => (await rig.pending(topic, 'g')) === 0);
  });

  test('handlers that never return', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    const seen: unknown[] = [];
    const hangs = ({ data }: { data: unknown }): unknown => {
      seen.push(data);
      return data === 1 ? new Promise(() => {}) : undefined;
    };
    const options = { ...FAST, concurrency: 1, timeoutMs: 100, maxDeliveries: 4, drainMs: 100 };
    await using _member = await ready(log.group('g', { from: 'earliest' }).run(hangs, options));
    await append(log, 5);
    await eventually(() => expect([...seen].sort()).toEqual([0, 1, 1, 1, 1, 2, 3, 4]), { withinMs: 20_000 });
    await eventually(async () => (await rig.admin.xlen(KEYS.group(topic, 0, 'g').dead)) === 1);
  });

  test('what a handler fails at after a pause goes to the others', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    const group = log.group('g', { from: 'earliest' });
    let fail: ((error: Error) => void) | undefined;
    const paused = await ready(
      group.run(
        () =>
          new Promise((_, reject) => {
            fail = reject;
          }),
        FAST,
      ),
    );
    await append(log, 1);
    await eventually(() => fail !== undefined);
    paused.pause();
    fail?.(new Error('not here'));
    const got: unknown[] = [];
    await using _other = await ready(group.run((entry) => void got.push(entry.deliveries), FAST));
    await eventually(() => expect(got).toEqual([2]), { withinMs: 20_000 });
    await paused.stop();
  });

  test('a graceful stop costs no delivery, not even the only one', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await append(log, 40);
    const seen: unknown[] = [];
    const slow = async ({ data }: { data: unknown }): Promise<void> => {
      await sleep(10);
      seen.push(data);
    };
    const options = { ...FAST, maxDeliveries: 1, concurrency: 4 };
    const group = log.group('g', { from: 'earliest' });
    const first = await ready(group.run(slow, options));
    await eventually(() => seen.length > 5);
    await first.stop();
    await using _second = await ready(group.run(slow, options));
    await eventually(() => expect([...seen].sort()).toEqual(numbers(40).sort()), { withinMs: 20_000 });
    expect(await rig.admin.xlen(KEYS.group(topic, 0, 'g').dead)).toBe(0);
  });

  test('leaving a loop waits for no drain, and gives back what was read ahead', async () => {
    const topic = rig.topic();
    const log = rig.log(topic);
    await append(log, 20);
    const group = log.group('g', { from: 'earliest' });
    const from = performance.now();
    for await (const { entry } of group.entries({ ...FAST, drainMs: 60_000 })) if (entry.data === 3) break;
    expect(performance.now() - from).toBeLessThan(20_000);
    const rest: unknown[] = [];
    await using _member = await ready(group.run((entry) => void rest.push(entry.data), FAST));
    await eventually(() => expect(rest.sort()).toEqual(numbers(20).slice(3).sort()), { withinMs: 20_000 });
  });

  test('a start that can’t be is heard by who waits for the end', async () => {
    const topic = rig.topic();
    await rig.log(topic, { partitions: 1 }).append({ event: 'e' });
    const group = rig.log(topic, { partitions: 8 }).group('g');
    await expect(group.run(() => {}).ended).rejects.toThrow('has 1 partitions, not 8');
    const loop = async (): Promise<void> => {
      for await (const _ of group.entries()) break;
    };
    await expect(loop()).rejects.toThrow('has 1 partitions, not 8');
    expect(rig.lines.some(({ event }) => event === 'group_failed')).toBe(true);
  });

  test('gauges of two members are their group’s, and of none when both have gone', async () => {
    const topic = rig.topic();
    const registry = new Registry();
    const log = rig.log(topic, { registry });
    const gauge = async (name: string): Promise<number | undefined> => {
      const { values = [] } = (await registry.getMetricsAsJSON()).find((metric) => metric.name === name) ?? {};
      return values[0]?.value;
    };
    let letGo: () => void = () => {};
    const held = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    const group = log.group('g');
    const members = [group.run(() => held, FAST), log.group('g').run(() => held, FAST)];
    await Promise.all(members.map(ready));
    await append(log, 1);
    await eventually(async () => (await gauge('holdfast_group_pending_entries')) === 1, { withinMs: 20_000 });
    expect(await gauge('holdfast_group_partitions')).toBe(2);
    letGo();
    await Promise.all(members.map((member) => member.stop()));
    expect(await gauge('holdfast_group_pending_entries')).toBeUndefined();
    expect(await gauge('holdfast_group_partitions')).toBeUndefined();
  });
});
