import { execFile } from 'node:child_process';
import { createServer } from 'node:http';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createAdapter } from '../../src/adapter/index.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { pair, startCluster, streamName, TestServer } from './rig.js';

const RECOVERY = { connectionStateRecovery: { maxDisconnectionDuration: 60_000 } };

let redis: RedisProcess;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
});
afterAll(() => redis?.stop());

const unlogged = (server: TestServer, outcome: string): Promise<number> =>
  server.metric(`adapter_unlogged_total{outcome="${outcome}"}`);

describe.concurrent('while Redis is away', () => {
  test.each(['local', 'drop'] as const)(
    'broadcasts go to %s, are counted, and everything works when it is back',
    async (whenUnavailable) => {
      const own = await startRedis({ aof: 'off' });
      await using cluster = await startCluster(2, { options: { whenUnavailable } }, own);
      const [a, b] = pair(cluster);
      const [here, there] = await Promise.all([a.member('room'), b.member('room')]);
      a.io.to('room').emit('e', 'before');
      for (const client of [here, there]) await client.receives(['before']);
      await own.kill();
      await eventually(
        async () =>
          !(await a.host.others().then(
            () => true,
            () => false,
          )),
        { what: 'the cut to be seen' },
      );

      const outcome = whenUnavailable === 'local' ? 'local' : 'dropped';
      a.io.to('room').emit('e', 'during');
      a.io.in('room').socketsJoin('other');
      await eventually(async () => (await unlogged(a, outcome)) === 2, { withinMs: 10_000 });
      expect(a.socketOf(here).rooms.has('other')).toBe(whenUnavailable === 'local');
      await expect(a.io.fetchSockets()).rejects.toThrow();
      await expect(a.io.serverSideEmitWithAck('x')).rejects.toThrow();
      here.socket.on('ask', (done) => done('here'));
      const asked = await new Promise<unknown[]>((resolve) =>
        a.io.timeout(1500).emit('ask', (error: Error, answers: unknown[]) => resolve([error?.message, answers])),
      );
      expect(asked).toEqual(['operation has timed out', ['here']]);
      a.io.volatile.to('room').emit('v', 1);
      a.io.serverSideEmit('x', 1);
      const newcomer = await a.client();
      newcomer.stop();

      await own.start();
      await eventually(
        async () => {
          a.io.to('room').emit('probe');
          return there.got.some(({ event }) => event === 'probe');
        },
        { withinMs: 10_000, what: 'both to hear each other again' },
      );
      a.io.to('room').emit('e', 'after');
      for (const client of [here, there]) await eventually(() => client.values().at(-1) === 'after');
      expect(here.values()).toEqual(whenUnavailable === 'local' ? ['before', 'during', 'after'] : ['before', 'after']);
      expect(there.values()).toEqual(['before', 'after']);
      // a Redis that came back empty knows who is there when all have renewed their leases
      await eventually(async () => (await a.io.fetchSockets()).length === 2);
      expect(await unlogged(a, 'unknown')).toBe(0);
      // one line per change of state
      const said = a.logs.filter(({ event }) => String(event).startsWith('redis_'));
      expect(said.map(({ event }) => event)).toEqual(['redis_down', 'redis_up']);
      await cluster.stop();
      await own.stop();
    },
  );

  test('an event per millisecond leaves neither timers nor listeners behind', async () => {
    const own = await startRedis({ aof: 'off' });
    await using cluster = await startCluster(1, RECOVERY, own);
    const [server] = cluster.servers;
    if (!server) throw new Error('no server');
    const client = await server.member('room');
    await own.kill();
    await eventually(
      async () =>
        !(await server.host.others().then(
          () => true,
          () => false,
        )),
    );
    // the kill ended the log's connection as well, which a turn of the loop sees: what it still took would be unknown, not local
    await new Promise(setImmediate);
    const timers = (): number => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length;
    const before = timers();
    for (let n = 0; n < 2000; n++) server.io.to('room').emit('e', n);
    expect(timers()).toBeLessThan(before + 20);
    await client.receives(Array.from({ length: 2000 }, (_, n) => n));
    await cluster.stop();
    await own.stop();
  });
});

describe.concurrent('start', () => {
  test('without Redis: clients come in, and when Redis comes they get their place, and servers hear each other', async () => {
    await using proxy = await startTcpProxy(redis.port);
    await proxy.refuse(true);
    const url = `redis://127.0.0.1:${proxy.port}`;
    const options = { streamName: streamName() };
    await using a = await new TestServer(url, { options, ...RECOVERY }).listen();
    await using b = await new TestServer(url, { options, ...RECOVERY }).listen();
    const [early, there] = await Promise.all([a.member('room'), b.member('room')]);
    expect([early.connects, there.connects]).toEqual([[false], [false]]);
    await expect(a.io.fetchSockets()).rejects.toThrow();
    a.io.to('room').emit('e', 'local');
    await early.receives(['local']);
    expect(await a.host.whenOpen(0)).toBe(false);
    await proxy.refuse(false);
    for (const server of [a, b]) await eventually(() => server.host.isOpen, { withinMs: 10_000 });
    await eventually(async () => (await a.io.of('/').adapter.serverCount()) === 2);
    a.io.to('room').emit('e', 'logged');
    await there.receives(['logged']);
    await early.receives(['local', 'logged']);
    await eventually(() => early.told.length > 0);
    expect(early.told[0]?.args[0]).toMatch(/^[\w-]{3,}:0:\d+-\d+$/);
    early.cut();
    await early.connected(2);
    expect(early.connects).toEqual([false, true]);
  });

  test('a password that is wrong is said in one line, and the server serves its own clients', async () => {
    const locked = await startRedis({ aof: 'off', config: { requirepass: 'right' } });
    const wrong = new Redis({ port: locked.port, password: 'wrong', lazyConnect: true });
    await using server = await new TestServer(locked.url, {
      redis: wrong,
      options: { streamName: streamName() },
    }).listen();
    const client = await server.member('room');
    server.io.to('room').emit('e', 1);
    await client.receives([1]);
    await eventually(() => server.logs.length > 0);
    expect(server.logs).toEqual([
      { level: 'warn', event: 'redis_down', message: expect.stringMatching(/^Redis does not answer.*WRONGPASS/) },
    ]);
    await server.stop();
    await locked.stop();
  });
});

describe.concurrent('io.close()', () => {
  test('resolves, and leaves no key that stays, no connection and nothing unhandled', async () => {
    const cluster = await startCluster(2, RECOVERY, redis);
    const [a, b] = pair(cluster);
    for (const { io } of [a, b]) io.of('/other');
    const clients = [await a.member('room'), await b.member('room', { namespace: '/other' })];
    a.io.to('room').emit('e', 1);
    await clients[0]?.receives([1]);
    const admin = new Redis(redis.url);
    const listed = async (): Promise<string[]> =>
      ((await admin.client('LIST')) as string).split('\n').filter((line) => line.includes(a.host.processId));
    expect((await listed()).length).toBeGreaterThan(2);
    const { processId } = a.host;
    await a.stop();
    expect(await admin.keys(`*inbox:{${processId}}`)).toEqual([]);
    expect(await admin.zscore(`hf:${cluster.name}:{pods}:processes`, processId)).toBeNull();
    await eventually(async () => (await listed()).length === 0);
    await cluster.stop();
    const keys = await admin.keys(`hf:${cluster.name}:*`);
    const forever: string[] = [];
    for (const key of keys) if ((await admin.pttl(key)) < 0) forever.push(key.slice(`hf:${cluster.name}:`.length));
    // the log itself
    expect(forever.filter((key) => !key.startsWith('{socket') && key !== 'topics')).toEqual([]);
    admin.disconnect();
  });

  test('a process whose servers are closed ends by itself', async () => {
    const script = fileURLToPath(new URL('close.mjs', import.meta.url));
    const { stdout } = await promisify(execFile)(process.execPath, [script], {
      env: { ...process.env, REDIS_URL: redis.url, STREAM: streamName() },
      timeout: 30_000,
    });
    expect(stdout.trim().split('\n')).toEqual(['closed', 'closed while starting', 'closed without Redis']);
  });

  test('right after it was made, and while it starts', async () => {
    for (const url of [redis.url, `redis://127.0.0.1:${await freePort()}`]) {
      const server = await new TestServer(url, { options: { streamName: streamName() } }).listen();
      const startedAt = performance.now();
      await server.stop();
      expect(performance.now() - startedAt).toBeLessThan(5000);
      expect(server.logs).toEqual([]);
    }
  });

  test('with Redis away, or silent, it ends all the same', async () => {
    const own = await startRedis({ aof: 'off' });
    const cluster = await startCluster(2, RECOVERY, own);
    const [a, b] = pair(cluster);
    await Promise.all([a.client(), b.client()]);
    own.pause();
    const startedAt = performance.now();
    await a.stop();
    await own.kill();
    await b.stop();
    expect(performance.now() - startedAt).toBeLessThan(15_000);
    await own.stop();
  });

  test('two servers of one createAdapter are two servers, and each closes alone', async () => {
    const adapter = createAdapter(new Redis(redis.url, { lazyConnect: true }), { streamName: streamName() });
    const [one, two] = [new Server(createServer(), { adapter }), new Server(createServer(), { adapter })];
    const got: unknown[] = [];
    two.on('hello', (value: unknown) => got.push(value));
    await eventually(async () => (await one.of('/').adapter.serverCount()) === 2);
    await eventually(async () => (await two.of('/').adapter.serverCount()) === 2);
    one.serverSideEmit('hello', 1);
    await eventually(() => got.length === 1);
    await one.close();
    expect(await two.of('/').adapter.serverCount()).toBe(1);
    expect(await two.fetchSockets()).toEqual([]);
    await two.close();
  });

  test('a namespace that is closed alone leaves the others', async () => {
    await using cluster = await startCluster(1, { cleanupEmptyChildNamespaces: true }, redis);
    const [server] = cluster.servers;
    if (!server) throw new Error('no server');
    server.io.of(/^\/child-\d+$/);
    for (let round = 0; round < 3; round++) {
      const client = await server.client({ namespace: '/child-1' });
      server.io.of('/child-1').emit('e', round);
      await client.receives([round]);
      client.stop();
      await eventually(() => !server.io._nsps.has('/child-1'));
    }
    const client = await server.client();
    server.io.emit('e', 'main');
    await client.receives(['main']);
  });
});
