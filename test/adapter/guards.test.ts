import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { decodePacket } from '../../src/gateway/frames.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { pair, startCluster, type TestServer } from './rig.js';

const RECOVERY = { connectionStateRecovery: { maxDisconnectionDuration: 60_000 } };

let redis: RedisProcess;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
});
afterAll(() => redis?.stop());

/** Emitted long before the second is over after which a turn is waited for no more, also on a busy machine. */
const EVENTS = 4000;

const only = ([server]: readonly TestServer[]): TestServer => {
  if (!server) throw new Error('no server');
  return server;
};

describe('what is emitted while Redis stands still', () => {
  test('thousands of local events wait their turn, in order, and none overtakes what was logged before', async () => {
    const own = await startRedis({ aof: 'off' });
    await using cluster = await startCluster(1, RECOVERY, own);
    const server = only(cluster.servers);
    const client = await server.member('room');
    own.pause();
    server.io.to('room').emit('e', -1);
    for (let n = 0; n < EVENTS; n++) server.io.local.to('room').emit('e', n);
    own.resume();
    await client.receives(Array.from({ length: EVENTS + 1 }, (_, n) => n - 1));
    await cluster.stop();
    await own.stop();
  });

  test.concurrent('local clients get what was emitted, whatever became of its arguments since', async () => {
    const own = await startRedis({ aof: 'off' });
    await using cluster = await startCluster(1, RECOVERY, own);
    const server = only(cluster.servers);
    const client = await server.member('room');
    await own.kill();
    const state = { n: 1, bytes: Buffer.from([1]) };
    server.io.to('room').emit('e', state);
    state.n = 2;
    state.bytes[0] = 2;
    await eventually(() => client.values().length === 1, { withinMs: 15_000 });
    expect(client.values()).toEqual([{ n: 1, bytes: Buffer.from([1]) }]);
    await cluster.stop();
    await own.stop();
  });

  test.concurrent('an emit with acks behind a broadcast that waits drops no promise', async () => {
    const own = await startRedis({ aof: 'off' });
    await using cluster = await startCluster(2, RECOVERY, own);
    const [server] = pair(cluster);
    const client = await server.member('room');
    client.socket.on('ask', (done) => done('here'));
    await own.kill();
    server.io.to('room').emit('e', 1);
    const heard = await new Promise<unknown[]>((resolve) =>
      server.io.timeout(2500).emit('ask', (error: Error, answers: unknown[]) => resolve([error?.message, answers])),
    );
    expect(heard).toEqual(['operation has timed out', ['here']]);
    await cluster.stop();
    await own.stop();
  });
});

test('what JSON cannot hold is thrown to whoever emits it, also behind a broadcast that waits', async () => {
  await using cluster = await startCluster(1, RECOVERY, redis);
  const server = only(cluster.servers);
  const client = await server.member('room');
  server.io.to('room').emit('e', 'first');
  expect(() => server.io.local.to('room').emit('e', 1n)).toThrow(TypeError);
  expect(() => server.io.to('room').emit('e', 1n)).toThrow(TypeError);
  server.io.local.to('room').emit('e', 'second');
  await client.receives(['first', 'second']);
});

test('a listener that throws keeps no event from its client, and is told of', async () => {
  await using cluster = await startCluster(1, RECOVERY, redis);
  const server = only(cluster.servers);
  const client = await server.member('room');
  server.socketOf(client).onAnyOutgoing(() => {
    throw new Error("the application's");
  });
  server.io.to('room').emit('e', 1);
  server.io.to('room').emit('e', 2);
  await client.receives([1, 2]);
  expect(client.connects).toHaveLength(1);
  expect(server.logs.map(({ event }) => event)).toContain('adapter_turn_failed');
});

test('more binary parts than a stock client takes can be decoded by a server for its own parser', () => {
  const parts = Array.from({ length: 20 }, (_, n) => Buffer.from([n]));
  const places = parts.map((_, num) => ({ _placeholder: true, num }));
  expect(decodePacket([`520-${JSON.stringify(['e', ...places])}`, ...parts]).data).toEqual(['e', ...parts]);
});

test('a socket that falls behind an event is moved or ended after that event, not before it', async () => {
  await using cluster = await startCluster(2, RECOVERY, redis);
  const [a, b] = pair(cluster);
  const client = await b.member(['room', 'other']);
  const large = 'x'.repeat(400_000);
  // in one batch of the log, and the first of them alone is more than a socket may have unsent
  a.io.to('room').emit('e', large);
  a.io.to('other').emit('e', 'small');
  a.io.in('room').socketsLeave('room');
  a.io.to('room').emit('e', 'not for it');
  a.io.to('other').emit('e', 'last');
  await client.receives([large, 'small', 'last']);
  a.io.to('other').emit('e', large);
  a.io.in('other').disconnectSockets(true);
  await eventually(() => !client.socket.connected, { what: 'its end' });
  expect(client.values().slice(3)).toEqual([large]);
});

test('a server that is starting costs nobody who asks a time-out, and is whole afterwards', async () => {
  await using cluster = await startCluster(1, RECOVERY, redis);
  const a = only(cluster.servers);
  await using link = await startTcpProxy(redis.port);
  link.holdRequests(true);
  const starting = cluster.add({ redis: new Redis({ port: link.port, lazyConnect: true }) });
  let isDone = false;
  let asked = 0;
  void starting.then(async (b) => {
    await b.host.whenOpen(10_000);
    isDone = true;
  });
  while (!isDone) {
    const startedAt = performance.now();
    await a.io.fetchSockets();
    a.io.volatile.emit('v');
    expect(performance.now() - startedAt).toBeLessThan(3000);
    // it is on its way for as long as this takes at least
    if (++asked === 4) link.holdRequests(false);
  }
  const b = await starting;
  await cluster.gathered();
  const client = await b.member('room');
  a.io.to('room').emit('e', 1);
  await client.receives([1]);
  client.cut();
  await client.connected(2);
  expect(client.connects).toEqual([false, true]);
  expect(b.logs.filter(({ level }) => level === 'error')).toEqual([]);
});

test('questions that are open when a server closes are ended', async () => {
  await using cluster = await startCluster(2, {}, redis);
  const [a, b] = pair(cluster);
  b.io.on('never' as 'connection', () => {});
  const answer = a.io.serverSideEmitWithAck('never').then(
    () => 'answered',
    (error: Error) => error.message,
  );
  await new Promise((resolve) => setImmediate(resolve));
  await eventually(() => (a.io.of('/').adapter as unknown as { requests: { size: number } }).requests.size === 1);
  await a.io.close();
  expect(await answer).toMatch(/^timeout reached/);
});
