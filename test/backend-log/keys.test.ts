import type { Socket } from 'node:net';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { GroupAdmin, LogAccess } from '../../src/log/index.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { type MonitoredCommand, monitor } from './redis-monitor.js';
import { GroupRig, KEYS } from './rig.js';
import { put, range, Witness, type WitnessOptions } from './witness.js';

let redis: RedisProcess;
let admin: Redis;
beforeAll(async () => {
  redis = await startRedis({ aof: 'off', config: { 'cluster-enabled': 'yes' } });
  admin = new Redis(redis.url);
});
afterAll(async () => {
  admin?.disconnect();
  await redis?.stop();
});

const LIMITS = { maxEntries: 100_000, maxBytes: 2 ** 26, idWindowMs: 120_000 };
const TOPICS = ['events', 'a b', '{x}', 'tøpic'];
const GROUPS = ['billing', 'a}b', '{y}'];

const slotOf = async (key: string): Promise<number> => (await admin.call('CLUSTER', 'KEYSLOT', key)) as number;
const keysIn = (keys: object): string[] => Object.values(keys).flat() as string[];

test('all keys of a partition are in one slot, with those of every group in it', async () => {
  for (const topic of TOPICS)
    for (const partition of [0, 1, 1023]) {
      const groups = GROUPS.map((group) => KEYS.group(topic, partition, group));
      const keys = [KEYS.partition(topic, partition), ...groups].flatMap(keysIn);
      const slots = new Set(await Promise.all(keys.map(slotOf)));
      expect([topic, partition, slots.size]).toEqual([topic, partition, 1]);
      expect(new Set(keys).size).toBe(keys.length);
    }
});

test('all keys of who reads for a group are in one slot', async () => {
  for (const topic of TOPICS)
    for (const group of GROUPS) {
      const keys = keysIn(KEYS.groupMembers(topic, group));
      expect(new Set(await Promise.all(keys.map(slotOf))).size).toBe(1);
      expect(new Set(keys).size).toBe(keys.length);
    }
});

test('partitions are spread over slots', async () => {
  const slots = await Promise.all([0, 1, 2, 3].map((partition) => slotOf(KEYS.partition('events', partition).stream)));
  expect(new Set(slots).size).toBe(4);
});

describe('scripts of groups', () => {
  test('touch only keys that they were given, which are in one slot', async () => {
    await using rig = await GroupRig.start();
    await using watch = await ScriptWatch.start(rig);
    await using access = new LogAccess(rig.redis.url, KEYS, LIMITS, { name: 'test' });
    await access.whenUp(5000);
    const groups = new GroupAdmin(access);
    for (const orderedBy of [undefined, 'tenant' as const]) {
      const topic = rig.topic();
      const log = rig.log(topic, { partitions: 2 });
      const group = orderedBy ?? 'shared';
      const failing: WitnessOptions = {
        ...{ orderedBy, maxDeliveries: 2, leaseMs: 500 },
        handler: (entry) => {
          if ((entry.data as { n: number }).n % 5 === 0) throw new Error('never');
        },
      };
      const one = await Witness.start(log, group, failing);
      const two = await Witness.start(log, group, failing);
      await put(log, range(0, 20), (n) => `k${n}`);
      const letters = groups.deadLetters(topic, group);
      await eventually(async () => (await letters.count()).deadLetters === 4, { withinMs: 10_000 });
      await letters.redrive('all');
      await eventually(async () => (await letters.count()).deadLetters === 4, { withinMs: 10_000 });
      await rig.admin.xgroup('DESTROY', KEYS.partition(topic, 0).stream, `app:${group}`);
      await eventually(() => one.gaps.length + two.gaps.length > 0, { withinMs: 10_000 });
      one.reader.pause();
      await one.reader.stop();
      await two.reader.stop();
      await groups.describe(topic, group);
      await groups.reset(topic, group, { to: 'earliest' });
      await groups.collect(await groups.garbage([topic], 0));
      await groups.delete(topic, group);
    }
    expect(watch.scripts.size).toBeGreaterThan(12);
    expect(await watch.faults()).toEqual([]);
  });

  test('are seen to touch another one', async () => {
    await using rig = await GroupRig.start();
    await using watch = await ScriptWatch.start(rig);
    await rig.admin.eval("return redis.call('SET', KEYS[1] .. ':more', 1)", 1, '{x}:key');
    await rig.admin.eval("return redis.call('MGET', KEYS[1], KEYS[2])", 2, '{x}:key', '{y}:key');
    await eventually(() => watch.scripts.size === 2);
    expect(await watch.faults()).toEqual(['SET of {x}:key:more, given {x}:key', 'two slots: {x}:key {y}:key']);
  });
});

interface Call {
  readonly keys: readonly string[];
  readonly commands: (readonly string[])[];
}

/** What scripts were given, and what they did. */
class ScriptWatch implements AsyncDisposable {
  readonly scripts = new Set<string>();
  readonly #calls: Call[] = [];

  #socket: Socket | undefined;

  private constructor(private readonly rig: GroupRig) {}

  static async start(rig: GroupRig): Promise<ScriptWatch> {
    const watch = new ScriptWatch(rig);
    watch.#socket = await monitor(rig.redis.port, (command) => watch.#see(command));
    return watch;
  }

  /** In words, each once. */
  async faults(): Promise<readonly string[]> {
    const faults = new Set<string>();
    const slots = new Map<string, number>();
    const touched = new Map<string, readonly string[]>();
    for (const { keys, commands } of this.#calls) {
      for (const key of keys) if (!slots.has(key)) slots.set(key, await slotOf(key));
      if (new Set(keys.map((key) => slots.get(key))).size > 1) faults.add(`two slots: ${keys.join(' ')}`);
      for (const args of commands) {
        if (args[0]?.toUpperCase() === 'TIME') continue;
        const text = args.join(' ');
        const own = touched.get(text) ?? ((await this.rig.admin.call('COMMAND', 'GETKEYS', ...args)) as string[]);
        touched.set(text, own);
        for (const key of own) if (!keys.includes(key)) faults.add(`${args[0]} of ${key}, given ${keys.join(' ')}`);
      }
    }
    return [...faults];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#socket?.destroy();
  }

  #see({ source, args }: MonitoredCommand): void {
    const [name, script, count] = args;
    if (source === 'lua') this.#calls.at(-1)?.commands.push(args);
    else if (/^eval(sha)?$/i.test(name ?? '')) {
      // one that isn't there yet does nothing, and comes again with its text
      this.scripts.add(script as string);
      this.#calls.push({ keys: args.slice(3, 3 + Number(count)), commands: [] });
    }
  }
}
