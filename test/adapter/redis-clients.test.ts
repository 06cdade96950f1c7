import { Redis } from 'ioredis';
import { createClient, createClientPool, createCluster, createSentinel } from 'redis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createAdapter } from '../../src/adapter/index.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { pair, startCluster, streamName } from './rig.js';

let redis: RedisProcess;
let locked: RedisProcess;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  locked = await startRedis({ aof: 'off', config: { requirepass: 'sécret/ €' } });
});
afterAll(async () => {
  await redis?.stop();
  await locked?.stop();
});

const PASSWORD = 'sécret/ €';

describe('a client says where Redis is', () => {
  async function works(client: unknown, on: RedisProcess = redis): Promise<void> {
    await using cluster = await startCluster(2, { redis: client }, on);
    const [a, b] = pair(cluster);
    const there = await b.member('room');
    a.io.to('room').emit('e', 1);
    await there.receives([1]);
  }

  test('ioredis, by URL', () => works(new Redis(redis.url, { lazyConnect: true })));

  test('ioredis with a password, a database and a prefix: keys are where its own would be', async () => {
    const options = { port: locked.port, password: PASSWORD, db: 3, keyPrefix: 'app:' };
    await works(new Redis({ ...options, lazyConnect: true }), locked);
    const seen = new Redis({ port: locked.port, password: PASSWORD, db: 3 });
    const elsewhere = new Redis({ port: locked.port, password: PASSWORD, db: 0 });
    const keys = await seen.keys('*');
    expect(keys.length).toBeGreaterThan(0);
    expect(keys.filter((key) => !key.startsWith('app:hf:s'))).toEqual([]);
    expect(await elsewhere.dbsize()).toBe(0);
    seen.disconnect();
    elsewhere.disconnect();
  });

  test('node-redis, never connected', () => works(createClient({ url: redis.url })));

  test('node-redis, connected, by options', async () => {
    const client = createClient({ socket: { host: '127.0.0.1', port: redis.port } });
    await client.connect();
    await works(client);
    await client.close();
  });

  test('node-redis with a password and a database in its URL', async () => {
    const url = `redis://:${encodeURIComponent(PASSWORD)}@127.0.0.1:${locked.port}/4`;
    await works(createClient({ url }), locked);
    const seen = new Redis({ port: locked.port, password: PASSWORD, db: 4 });
    expect(await seen.dbsize()).toBeGreaterThan(0);
    seen.disconnect();
  });

  test('its own connection is left alone, open or not', async () => {
    const client = new Redis(redis.url, { lazyConnect: true });
    await works(client);
    expect(client.status).toBe('wait');
  });
});

describe('what is no single Redis', () => {
  const cluster = new Redis.Cluster([{ port: 1 }], { lazyConnect: true });
  test.each([
    ['a Cluster of ioredis', cluster, /Redis Cluster is not supported yet/],
    ['a Cluster of node-redis', createCluster({ rootNodes: [{ url: 'redis://127.0.0.1:1' }] }), /Redis Cluster/],
    ['a pool of node-redis', createClientPool({ url: 'redis://127.0.0.1:1' }), /createAdapter: .*(ioredis|Redis)/],
    ['a Sentinel client of node-redis', sentinelClient(), /does not say where its Redis is/],
    ['nothing', undefined, /wants an ioredis client/],
    ['null', null, /wants an ioredis client/],
    ['a URL', 'redis://127.0.0.1', /wants an ioredis client/],
    ['an object', {}, /does not say where its Redis is/],
    ['a class', Redis, /createAdapter/],
    ['a node-redis client with a credentials provider', withProvider(), /credentials provider cannot be shared/],
  ])('%s: one clear TypeError', (_name, client, message) => {
    const create = (): unknown => createAdapter(client);
    expect(create).toThrow(TypeError);
    expect(create).toThrow(message);
    expect(() => create()).not.toThrow(/\n/);
  });

  function sentinelClient(): unknown {
    return createSentinel({ name: 'main', sentinelRootNodes: [{ host: '127.0.0.1', port: 1 }] });
  }

  function withProvider(): unknown {
    const credentials = async () => ({ username: 'u', password: 'p' });
    return createClient({ credentialsProvider: { type: 'async-credentials-provider', credentials } });
  }
});

describe('options', () => {
  const client = new Redis({ lazyConnect: true });
  test.each([
    ['streamName', ''],
    ['streamName', 'a b'],
    ['streamCount', 0],
    ['streamCount', 1.5],
    ['maxLen', '100'],
    ['maxBytes', 1],
    ['maxAgeMs', 0],
    ['ringBytes', -1],
    ['slowReaderMs', Number.NaN],
    ['requestsTimeout', 0],
    ['whenUnavailable', 'never'],
    ['logger', {}],
    ['registry', {}],
  ])('%s: %j is a TypeError that names it and what was given', (name, value) => {
    const create = (): unknown => createAdapter(client, { [name]: value } as object);
    expect(create).toThrow(TypeError);
    expect(create).toThrow(new RegExp(`^createAdapter: ${name}: .+ \\(got `));
  });

  test('those of the streams adapter are taken, without effect; unknown ones are warned about', () => {
    const lines: string[] = [];
    const say = (_fields: object, message: string): void => void lines.push(message);
    const logger = { debug: say, info: say, warn: say, error: say };
    createAdapter(client, { readCount: 100, heartbeatInterval: 5000, streamName: streamName(), logger });
    createAdapter(client, { streamNmae: 'x', logger } as object);
    expect(lines).toEqual(['without effect: readCount, heartbeatInterval', 'unknown options: streamNmae']);
  });

  test('an undefined one is the default', () => {
    expect(() => createAdapter(client, { maxLen: undefined, logger: undefined } as object)).not.toThrow();
  });
});
