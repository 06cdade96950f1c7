import { setTimeout as pass } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger, silentMeter } from '../../src/core/ports.js';
import type { Service } from '../../src/core/service.js';
import { EventLog } from '../../src/log/index.js';
import { Pods } from '../../src/pods/index.js';
import { Keys } from '../../src/redis/keys.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';

let redis: RedisProcess;
let admin: Redis;
beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = new Redis(redis.url);
});
afterAll(async () => {
  admin.disconnect();
  await redis.stop();
});

let made = 0;
const identity = (): { pod: string; processId: string } => ({ pod: `p${++made}`, processId: `process-${made}` });
const shared = { keys: new Keys('hf:'), logger: silentLogger, meter: silentMeter };

const makers: Record<string, (url: string) => Service> = {
  EventLog: (url) =>
    new EventLog({
      ...shared,
      ...identity(),
      url,
      topic: 'events',
      partitions: undefined,
      maxEntries: 1000,
      maxBytes: 1e6,
      maxAgeMs: 1e6,
      trimMs: 100,
      reapMs: 1e6,
      keepMs: 0,
      idWindowMs: 1000,
      handler: { onEntry: () => {}, onGap: () => {}, onEpoch: () => {}, onFenced: () => {} },
    }),
  Pods: (url) => new Pods({ ...shared, ...identity(), url, handOvers: [], onReturn: () => {}, onLost: () => {} }),
};

/** Connections of the services: what this test itself holds has no such name. */
async function connections(): Promise<number> {
  const list = (await admin.client('LIST')) as string;
  return list.split('\n').filter((line) => line.includes('name=holdfast')).length;
}

const noConnectionsLeft = (): Promise<void> =>
  eventually(async () => expect(await connections()).toBe(0), { what: 'all connections to be closed' });

describe.each(Object.entries(makers))('%s', (_name, make) => {
  it('start and stop are idempotent, in any order', async () => {
    const service = make(redis.url);
    await service.stop();
    await Promise.all([service.start(), service.start()]);
    await service.start();
    expect(await connections()).toBeGreaterThan(0);
    await Promise.all([service.stop(), service.stop()]);
    await service.stop();
    await noConnectionsLeft();
  });

  it('what is made and never started has nothing open', async () => {
    make(redis.url);
    await pass(100);
    expect(await connections()).toBe(0);
  });

  it('stop during start ends both and leaves nothing open, at whatever moment', async () => {
    const rounds = Array.from({ length: 40 }, async (_, round) => {
      const service = make(redis.url);
      const started = service.start().catch(() => {});
      if (round > 0) await pass(round * 2);
      await service.stop();
      await started;
    });
    await Promise.all(rounds);
    // one that was left behind may still be connecting
    await pass(500);
    await noConnectionsLeft();
  });

  it('stops while nothing answers', async () => {
    const service = make(`redis://127.0.0.1:${await freePort()}`);
    const started = service.start().catch((error: Error) => error.message);
    await pass(300);
    await service.stop();
    expect(await started).toContain('stopped');
  });

  it('stops in time while Redis stands still', async () => {
    const service = make(redis.url);
    await service.start();
    redis.pause();
    const startedAt = performance.now();
    try {
      await service.stop();
      expect(performance.now() - startedAt).toBeLessThan(6000);
    } finally {
      redis.resume();
    }
    await noConnectionsLeft();
  });
});
