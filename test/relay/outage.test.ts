import { Redis } from 'ioredis';
import { expect, it } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { connect } from '../harness/client.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';

const OUTAGE_MS = 4000;

interface Outage {
  readonly begin: (redis: RedisProcess) => Promise<void>;
  readonly end: (redis: RedisProcess) => Promise<void>;
}

interface Status {
  readonly connections: number;
  readonly dependencies: { readonly redis: { readonly status: string } };
}

const OUTAGES: Readonly<Record<string, Outage>> = {
  hangs: { begin: async (redis) => redis.pause(), end: async (redis) => redis.resume() },
  dies: { begin: (redis) => redis.kill(), end: (redis) => redis.start() },
};

it.concurrent.each(Object.entries(OUTAGES))(
  'a Redis that %s turns no pod NotReady and ends no socket; all heals by itself, one log line each',
  async (_, { begin, end }) => {
    await using redis = await startRedis();
    await using pod = await startPod({ redisUrl: redis.url, name: 'pod-a' });
    await using client = await connect(pod.url, { token: await token({ sub: 'ann', caps: ALL_CAPS }) });
    await client.subscribe('news');

    const probes: { status: number; tookMs: number }[] = [];
    let isOver = false;
    const probing = (async () => {
      while (!isOver) {
        const startedAt = performance.now();
        const { status } = await fetch(`${pod.opsUrl}/_readiness`, { signal: AbortSignal.timeout(10_000) });
        probes.push({ status, tookMs: performance.now() - startedAt });
        await sleep(200);
      }
    })();
    const status = async (): Promise<{ body: Status; tookMs: number }> => {
      const startedAt = performance.now();
      const body = (await (await fetch(`${pod.opsUrl}/_status`)).json()) as Status;
      return { body, tookMs: performance.now() - startedAt };
    };
    const lines = (event: string): string[] => pod.logs.filter((line) => line.includes(`"event":"${event}"`));

    await eventually(async () => expect((await status()).body.dependencies.redis.status).toBe('up'), {
      withinMs: 15_000,
    });
    await begin(redis);
    await sleep(1100); // an answer is good for a second
    const { body, tookMs } = await status();
    expect(body).toMatchObject({ connections: 1, dependencies: { redis: { status: 'down' } } });
    expect(tookMs).toBeLessThan(3000);
    const refused = await client.publish({ room: 'news', event: 'tick', data: 'lost' });
    expect(refused).toMatchObject({ ok: false, code: 'unavailable', retryable: true });
    await sleep(OUTAGE_MS);
    await end(redis);
    await eventually(
      async () =>
        expect(await client.publish({ room: 'news', event: 'tick', data: 'kept' })).toMatchObject({ ok: true }),
      { withinMs: 20_000 },
    );
    await eventually(() => client.received.some(({ data }) => data === 'kept'), { withinMs: 20_000 });
    await eventually(() => lines('redis_up').length === 1, { withinMs: 20_000 });
    isOver = true;
    await probing;
    expect(new Set(probes.map((probe) => probe.status))).toEqual(new Set([200]));
    expect(Math.max(...probes.map(({ tookMs }) => tookMs))).toBeLessThan(3000);
    expect(client.disconnects).toEqual([]);
    expect(lines('redis_down')).toHaveLength(1);
    expect(lines('redis_up')).toHaveLength(1);
  },
);

it.concurrent('a full Redis refuses what is published and ends nothing; once it has room, all goes on', async () => {
  await using redis = await startRedis({ config: { 'maxmemory-policy': 'noeviction' } });
  await using pod = await startPod({ redisUrl: redis.url, name: 'pod-a' });
  await using client = await connect(pod.url, { token: await token({ sub: 'ann', caps: ALL_CAPS }) });
  await client.subscribe('news');
  using admin = clientOf(redis.url);
  await admin.config('SET', 'maxmemory', '1');
  // longer than a lease, which can't be renewed either
  const until = performance.now() + 5000;
  while (performance.now() < until) {
    const refused = await client.publish({ room: 'news', event: 'tick', data: 'lost' });
    expect(refused).toMatchObject({ ok: false, code: 'unavailable', retryable: true });
    expect((await fetch(`${pod.opsUrl}/_readiness`)).status).toBe(200);
    await sleep(250);
  }
  await admin.config('SET', 'maxmemory', '0');
  await eventually(
    async () => expect(await client.publish({ room: 'news', event: 'tick', data: 'kept' })).toMatchObject({ ok: true }),
    { withinMs: 15_000 },
  );
  await eventually(() => client.received.some(({ data }) => data === 'kept'), { withinMs: 15_000 });
  expect(client.received.some(({ data }) => data === 'lost')).toBe(false);
  expect(client.disconnects).toEqual([]);
  expect(pod.isRunning).toBe(true);
});

it.concurrent('a master that is demoted and promoted again is one line each, however often it is left and found meanwhile', async () => {
  await using other = await startRedis();
  await using redis = await startRedis();
  await using pod = await startPod({ redisUrl: redis.url, name: 'pod-a' });
  using admin = clientOf(redis.url);
  await admin.call('REPLICAOF', '127.0.0.1', String(other.port));
  await sleep(4000);
  await admin.call('REPLICAOF', 'NO', 'ONE');
  const lines = (event: string): string[] => pod.logs.filter((line) => line.includes(`"event":"${event}"`));
  await eventually(() => lines('redis_up').length > 0, { withinMs: 15_000 });
  await sleep(2000);
  expect([lines('redis_down').length, lines('redis_up').length]).toEqual([1, 1]);
  expect((await fetch(`${pod.opsUrl}/_readiness`)).status).toBe(200);
});

function clientOf(url: string): Redis & Disposable {
  const client = new Redis(url, { retryStrategy: () => 50, maxRetriesPerRequest: null });
  client.on('error', () => {});
  return Object.assign(client, { [Symbol.dispose]: () => client.disconnect() });
}
