import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { formatPosition, parsePosition } from '../../src/wire/position.js';
import { RawClient } from '../gateway/raw-client.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { pair, startCluster, type TestServer } from './rig.js';

// what a first version of such an adapter got wrong: each under its own name

const RECOVERY = { connectionStateRecovery: { maxDisconnectionDuration: 60_000 } };

let redis: RedisProcess;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
});
afterAll(() => redis?.stop());

const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

/** All that a server has broadcast is in the log, and dispatched here and there. */
async function dispatched(count: number, ...servers: readonly TestServer[]): Promise<void> {
  await eventually(() => servers.every(({ host }) => host.hub.dispatched(0).offset >= count));
}

test.each([0, 3])('a server that comes to a log of %i entries gives its clients nothing of it', async (count) => {
  await using cluster = await startCluster(1, RECOVERY, redis);
  const [first] = cluster.servers as [TestServer];
  for (const n of numbers(count)) first.io.emit('e', n);
  await dispatched(count, first);
  const later = await cluster.add({ options: { ringBytes: 64 * 1024 } });
  await eventually(() => later.host.isOpen);
  const client = await later.client();
  first.io.emit('e', 'new');
  await client.receives(['new']);
});

test('a namespace that is made later resumes its clients from before and after', async () => {
  await using cluster = await startCluster(2, RECOVERY, redis);
  const [a, b] = pair(cluster);
  for (const n of numbers(20)) a.io.emit('e', n);
  for (const { io } of [a, b]) io.of('/later');
  const client = await a.client({ namespace: '/later' });
  b.io.of('/later').emit('e', 0);
  await client.receives([0]);
  client.socket.io.reconnection(false);
  client.cut();
  for (const n of numbers(20)) (n % 2 ? a.io : b.io.of('/later')).emit('e', n + 1);
  await eventually(() => !client.socket.connected);
  client.moveTo(b.url);
  client.socket.connect();
  await client.connected(2);
  await client.receives([
    0,
    ...numbers(20)
      .filter((n) => n % 2 === 0)
      .map((n) => n + 1),
  ]);
  expect(client.connects).toEqual([false, true]);
});

test('a log that was trimmed, inside one millisecond too, is not called complete by a server that comes later', async () => {
  await using cluster = await startCluster(1, { ...RECOVERY, options: { maxLen: 160 } }, redis);
  const [first] = cluster.servers as [TestServer];
  const before = await first.client();
  const { pid } = first.socketOf(before) as unknown as { pid: string };
  // one millisecond has many of them
  for (const n of numbers(1200)) {
    first.io.emit('e', n);
    // faster than it is read, a log of this size would be cut unread
    if (n % 100 === 99) await eventually(() => before.values().length === n + 1);
  }
  const positions = before.got.map(
    ({ args }) => parsePosition(args[1]) ?? { epoch: '', partition: 0, ms: 0, offset: 0 },
  );
  expect(new Set(positions.map(({ ms }) => ms)).size).toBeLessThan(600);
  const oldest = (await first.host.log.page(0, { ms: 0, offset: 0 }, { entries: 1, bytes: 1 })).first;
  expect(oldest).toBeGreaterThan(100);
  expect(oldest).toBeLessThan(1200);
  const later = await cluster.add();
  await eventually(() => later.host.isOpen);
  const at = (offset: number) => positions.find((position) => position.offset === offset) ?? positions[0];
  const gapOf = async (offset: number): Promise<boolean> =>
    (await later.host.locator.locate(at(offset) as NonNullable<ReturnType<typeof at>>, 0))?.gap !== undefined;
  expect(await Promise.all([oldest - 2, oldest - 1, oldest].map(gapOf))).toEqual([true, false, false]);
  before.stop();
  const trimmed = at(oldest - 2);
  const offset = trimmed && formatPosition(trimmed.epoch, 0, trimmed.ms, trimmed.offset);
  await using client = new RawClient(later.port);
  expect((await client.open({ pid, offset })).pid).not.toBe(pid);
});

test('a client that resumes has its record written once', async () => {
  await using cluster = await startCluster(2, RECOVERY, redis);
  const [a, b] = pair(cluster);
  const client = await a.member(['one', 'two', 'three']);
  a.io.to('one').emit('e', 1);
  await client.receives([1]);
  client.socket.io.reconnection(false);
  client.cut();
  await eventually(async () => (await a.io.fetchSockets()).length === 0);
  const saved = (): Promise<number> => b.metric('resume_records_total{outcome="saved"}');
  const before = await saved();
  client.moveTo(b.url);
  client.socket.connect();
  await client.connected(2);
  expect(client.connects).toEqual([false, true]);
  await eventually(async () => (await saved()) > before);
  await eventually(() => client.told.length > 1);
  expect(await saved()).toBe(before + 1);
});

test('a gap says its reason: an epoch that ended is not called trimmed', async () => {
  await using cluster = await startCluster(2, RECOVERY);
  const [a, b] = pair(cluster);
  const client = await b.member('room');
  for (const n of numbers(5)) a.io.to('room').emit('e', n);
  await client.receives(numbers(5));
  const admin = new Redis(cluster.redis.url);
  await admin.flushall();
  admin.disconnect();
  await eventually(
    () => {
      a.io.to('room').emit('e', 'again');
      return client.values().includes('again');
    },
    { withinMs: 15_000 },
  );
  const gaps = client.told.filter(({ event }) => event === 'holdfast:gap');
  for (const { args } of gaps) expect(args[0]).toMatchObject({ reason: 'epoch' });
  expect(await b.metric('gaps_told_total{reason="trimmed"}')).toBe(0);
});

test('namespaces share connections to Redis, and closing one leaves none of its own behind', async () => {
  await using cluster = await startCluster(1, {}, redis);
  const [server] = cluster.servers as [TestServer];
  const admin = new Redis(redis.url);
  const connections = async (): Promise<number> =>
    ((await admin.client('LIST')) as string).split('\n').filter((line) => line.includes(server.host.processId)).length;
  const before = await connections();
  for (const n of numbers(30)) server.io.of(`/many-${n}`);
  const client = await server.client({ namespace: '/many-29' });
  server.io.of('/many-29').emit('e', 1);
  await client.receives([1]);
  expect(await connections()).toBe(before);
  admin.disconnect();
});
