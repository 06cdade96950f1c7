import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { sleep, within } from '../../src/core/sleep.js';
import { freePort } from '../harness/free-port.js';
import { type Pod, type PodOptions, spawnPod, startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';

let redis: RedisProcess;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis?.stop());

/** Far more than a process takes until it looks for Redis, however busy the machine is. */
const STARTED_MS = 45_000;

/** Each with keys of its own in the one Redis. */
let prefixes = 0;
const fresh = (): Record<string, string> => ({ HOLDFAST_REDIS_PREFIX: `t${prefixes++}:` });

interface FailedBoot {
  readonly code: number | null;
  /** What a person reads: no JSON. */
  readonly said: readonly string[];
  readonly tookMs: number;
}

async function failToBoot(options: Partial<PodOptions>): Promise<FailedBoot> {
  const startedAt = performance.now();
  await using pod = await spawnPod({
    redisUrl: redis.url,
    name: 'pod-a',
    ...options,
    env: { ...fresh(), ...options.env },
  });
  const { code } = await pod.exit;
  const said = pod.logs.filter((line) => !line.startsWith('{'));
  return { code, said, tookMs: performance.now() - startedAt };
}

async function answers(url: string): Promise<boolean> {
  return fetch(url, { signal: AbortSignal.timeout(1000) }).then(
    () => true,
    () => false,
  );
}

/** Accepts and says nothing. */
async function silentPort(port = 0): Promise<{ readonly port: number } & AsyncDisposable> {
  const server = createServer((socket) => socket.on('error', () => {})).listen(port, '127.0.0.1');
  await once(server, 'listening');
  const bound = (server.address() as AddressInfo).port;
  return { port: bound, [Symbol.asyncDispose]: async () => void server.close() };
}

function clientOf(url: string): Redis & Disposable {
  const client = new Redis(url, { retryStrategy: () => 50, maxRetriesPerRequest: null });
  client.on('error', () => {});
  return Object.assign(client, { [Symbol.dispose]: () => client.disconnect() });
}

/** Waits for the line that says so, sees nothing bound for longer than the gate, heals, and sees it start. */
async function waitsUntilHealed(pod: Pod, code: string, heal: () => Promise<unknown>, forMs: number): Promise<void> {
  await eventually(() => pod.logs.some((line) => line.includes(`"code":"${code}"`)), { withinMs: STARTED_MS });
  const until = performance.now() + forMs;
  while (performance.now() < until) {
    expect(pod.isRunning).toBe(true);
    expect(await answers(`${pod.url}/health`)).toBe(false);
    expect(await answers(`${pod.opsUrl}/_liveness`)).toBe(false);
    await sleep(250);
  }
  expect(pod.logs.filter((line) => line.includes('redis_refuses'))).toHaveLength(1);
  await heal();
  await pod.ready();
}

// these wait more than they work
describe('a boot that takes its time', { concurrent: true, timeout: 120_000 }, () => {
  it('nothing listens where Redis should, or what does says nothing: after about 10 s', async () => {
    await using silent = await silentPort();
    const boots = [await freePort(), silent.port].map((port) => failToBoot({ redisUrl: `redis://127.0.0.1:${port}` }));
    const [nobody, mute] = (await Promise.all(boots)) as [FailedBoot, FailedBoot];
    expect(nobody.said).toEqual([
      expect.stringMatching(/^holdfast: Redis at 127\.0\.0\.1:\d+ does not answer: .*ECONNREFUSED/),
    ]);
    expect(mute.said).toEqual([expect.stringMatching(/^holdfast: Redis at 127\.0\.0\.1:\d+ does not answer: /)]);
    for (const { code, tookMs } of [nobody, mute]) {
      expect(code).toBe(1);
      expect(tookMs).toBeGreaterThan(9000);
      expect(tookMs).toBeLessThan(45_000);
    }
  });

  it('a full Redis is waited for, unbound, for longer than a dead one', async () => {
    await using full = await startRedis({ config: { maxmemory: '1', 'maxmemory-policy': 'noeviction' } });
    await using pod = await spawnPod({ redisUrl: full.url, name: 'pod-a' });
    using client = clientOf(full.url);
    await waitsUntilHealed(pod, 'OOM', () => client.config('SET', 'maxmemory', '0'), 12_000);
  });

  it('a loading Redis is waited for, unbound', async () => {
    await using slow = await startRedis({
      aof: 'off',
      config: {
        'key-load-delay': '100',
        'loading-process-events-interval-bytes': '1024',
        'enable-debug-command': 'yes',
      },
    });
    using client = clientOf(slow.url);
    await client.call('DEBUG', 'POPULATE', '60000');
    await client.call('SAVE');
    await slow.kill();
    const loaded = slow.start().catch(() => {}); // however long it takes
    await using pod = await spawnPod({ redisUrl: slow.url, name: 'pod-a' });
    await waitsUntilHealed(pod, 'LOADING', () => loaded, 500);
  });

  it('Redis that goes away in the middle of the start ends it in one line', async () => {
    await using proxy = await startTcpProxy(redis.port);
    await using pod = await spawnPod({ redisUrl: `redis://127.0.0.1:${proxy.port}`, name: 'pod-a', env: fresh() });
    // the gate's own connection was there: what the relay makes next finds a wire that carries nothing
    await eventually(() => proxy.connections > 1, { withinMs: STARTED_MS });
    proxy.blackhole(true);
    expect(await within(45_000, pod.exit)).toMatchObject({ code: 1 });
    expect(pod.logs.filter((line) => !line.startsWith('{'))).toEqual([
      expect.stringMatching(/^holdfast: Redis at 127\.0\.0\.1:\d+ (stopped answering|does not answer)/),
    ]);
  });
});

// one after another, since some must be at once, while those above wait
describe.concurrent('what can never start says why in one line', () => {
  it.sequential('a wrong password, and none: at once', async () => {
    await using locked = await startRedis({ config: { requirepass: 'right' } });
    const wrong = failToBoot({ redisUrl: locked.url.replace('//', '//:wrong@') });
    const none = failToBoot({ redisUrl: locked.url });
    // what a process costs that asks no Redis
    const { tookMs: leastMs } = await failToBoot({ redisUrl: 'redis://a:6379,redis://b:6379' });
    for (const { code, said, tookMs } of await Promise.all([wrong, none])) {
      expect(code).toBe(1);
      expect(said).toEqual([expect.stringMatching(/^holdfast: Redis refuses this relay: (WRONGPASS|NOAUTH)/)]);
      expect(said[0]).not.toContain('wrong@');
      expect(tookMs - leastMs).toBeLessThan(9000);
    }
  });

  it.sequential('a taken PORT', async () => {
    await using taken = await silentPort();
    const { port } = taken;
    expect(await failToBoot({ env: { PORT: String(port) } })).toMatchObject({
      code: 1,
      said: [`holdfast: cannot bind the public listener to 127.0.0.1:${port} (PORT): the port is taken`],
    });
  });

  it.sequential('a taken OPS_PORT', async () => {
    await using taken = await silentPort();
    const { port } = taken;
    expect(await failToBoot({ env: { OPS_PORT: String(port) } })).toMatchObject({
      code: 1,
      said: [`holdfast: cannot bind the private listener to 127.0.0.1:${port} (OPS_PORT): the port is taken`],
    });
  });

  it.sequential('a start that failed leaves no lease behind: the next one with its name need not wait', async () => {
    await using taken = await silentPort();
    const env: Record<string, string> = { ...fresh(), OPS_PORT: String(taken.port) };
    expect((await failToBoot({ env })).code).toBe(1);
    using client = clientOf(redis.url);
    expect(await client.zcard(`${env.HOLDFAST_REDIS_PREFIX}{pods}:processes`)).toBe(0);
  });

  it.sequential('no key for tokens beside REDIS_URL', async () => {
    const { code, said, tookMs } = await failToBoot({ env: { HOLDFAST_JWT_SECRET: undefined } });
    expect(code).toBe(1);
    expect(said).toEqual([expect.stringMatching(/^holdfast: no key verifies tokens: set HOLDFAST_JWT_SECRET/)]);
    expect(tookMs).toBeLessThan(9000);
  });

  it.sequential.each(['redis://a:6379,redis://b:6379', 'redis+sentinel://a:26379/main'])('%s', async (redisUrl) => {
    expect(await failToBoot({ redisUrl })).toMatchObject({
      code: 1,
      said: [
        'holdfast: REDIS_URL: wants one Redis, redis:// or rediss://: Redis Cluster and Sentinel are not supported yet',
      ],
    });
  });
});

it.concurrent('a second process with another number of partitions is refused', async () => {
  const env = fresh();
  await using _first = await startPod({
    redisUrl: redis.url,
    name: 'pod-a',
    env: { ...env, HOLDFAST_PARTITIONS: '2' },
  });
  const { code, said } = await failToBoot({ name: 'pod-b', env: { ...env, HOLDFAST_PARTITIONS: '3' } });
  expect(code).toBe(1);
  expect(said).toEqual([expect.stringMatching(/^holdfast: .*partitions/)]);
});

it.concurrent('the private listener binds last: it never answers before the public one', async () => {
  await using pod = await spawnPod({ redisUrl: redis.url, name: 'pod-a', env: fresh() });
  for (;;) {
    const isOpsUp = await answers(`${pod.opsUrl}/_readiness`);
    if (!isOpsUp) continue;
    expect(await answers(`${pod.url}/health`)).toBe(true);
    break;
  }
});

it.concurrent('SIGTERM while it starts ends it at once, with nothing bound afterwards', async () => {
  const port = await freePort();
  await using pod = await spawnPod({ redisUrl: `redis://127.0.0.1:${port}`, name: 'pod-a', env: fresh() });
  await sleep(3000);
  const startedAt = performance.now();
  await pod.sigterm();
  expect(performance.now() - startedAt).toBeLessThan(4000);
  expect(pod.logs.filter((line) => line.startsWith('holdfast:'))).toEqual([]);
});

it.concurrent('a Redis that is read-only is waited for, unbound', async () => {
  await using replica = await startRedis({ config: { replicaof: `127.0.0.1 ${redis.port}` } });
  await using pod = await spawnPod({ redisUrl: replica.url, name: 'pod-a' });
  using client = clientOf(replica.url);
  await waitsUntilHealed(pod, 'READONLY', () => client.call('REPLICAOF', 'NO', 'ONE'), 1000);
});
