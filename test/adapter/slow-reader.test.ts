import type { Socket as NetSocket } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Subscriber } from '../../src/gateway/subscriber.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { pair, startCluster, type TestClient, type TestServer } from './rig.js';

const RECOVERY = { connectionStateRecovery: { maxDisconnectionDuration: 60_000 } };
/** What a socket may have unsent, and one page of the log, which all who need it share. */
const BOUND = 256 * 1024 + 1_000_000;

let redis: RedisProcess;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
});
afterAll(() => redis?.stop());

const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

/** Its client reads nothing while it is paused; what the kernel takes is not ours. */
function reading(client: TestClient, on: boolean): void {
  const { ws } = client.socket.io.engine.transport as unknown as { ws: { pause(): void; resume(): void } };
  if (on) ws.resume();
  else ws.pause();
}

function subscriberOf(server: TestServer, client: TestClient): Subscriber {
  const { conn } = server.socketOf(client) as unknown as { conn: unknown };
  for (const subscriber of server.host.hub.subscribers()) {
    const { outbox } = subscriber as unknown as { outbox: { socket: { conn: unknown } } };
    if (outbox.socket.conn === conn) return subscriber;
  }
  throw new Error('no such subscriber');
}

describe.each([
  ['with recovery', RECOVERY],
  ['without recovery', {}],
])('%s', (name, settings) => {
  test.each([
    ['small events, one by one', 8000, 2000],
    ['large ones', 300_000, 60],
  ])('who does not read %s holds no buffers, delays nobody, and gets all of it later', async (_what, bytes, count) => {
    await using cluster = await startCluster(
      2,
      { ...settings, options: { ringBytes: 64 * 1024, slowReaderMs: 60_000 } },
      redis,
    );
    const [a, b] = pair(cluster);
    const [slow, quick] = await Promise.all([b.member('room'), b.member('room')]);
    reading(slow, false);
    const subscriber = subscriberOf(b, slow);
    const text = 'x'.repeat(bytes);
    let most = 0;
    try {
      for (const n of numbers(count)) {
        a.io.to('room').emit('e', n, { text });
        if (n % 20 !== 0) continue;
        // the other one keeps up
        await eventually(() => quick.values().length > n - 40);
        most = Math.max(most, subscriber.outbox.unsentBytes);
      }
      await quick.receives(numbers(count));
    } finally {
      reading(slow, true);
    }
    const { state } = subscriber;
    const before = slow.values().length;
    expect(state).toBe('behind');
    expect(most).toBeLessThan(BOUND + bytes);
    expect(before).toBeLessThan(count);
    await eventually(() => slow.values().length === count, { withinMs: 20_000, what: 'the slow one to catch up' });
    expect(slow.values()).toEqual(numbers(count));
    a.io.to('room').emit('e', count, 'live');
    await slow.receives(numbers(count + 1));
    expect(await b.metric('slow_consumers_closed_total')).toBe(0);
    // a position behind its arguments is what a server without recovery must not add
    const expected = name === 'with recovery' ? [3] : [2];
    expect([...new Set(slow.got.map(({ args }) => args.length))]).toEqual(expected);
  });
});

test('one that does not read delays nobody who catches up from the log beside it', async () => {
  await using cluster = await startCluster(2, { options: { ringBytes: 64 * 1024, slowReaderMs: 60_000 } }, redis);
  const [a, b] = pair(cluster);
  const [slow, quick] = await Promise.all([b.member('room'), b.member('room')]);
  const text = 'x'.repeat(8000);
  const waits: number[] = [];
  reading(slow, false);
  try {
    let sent = 0;
    const round = async (): Promise<number> => {
      const startedAt = performance.now();
      // more than a socket may have unsent: each of them falls behind, beyond what is in memory
      for (let left = 60; left > 0; left--) a.io.to('room').emit('e', sent++, { text });
      await eventually(() => quick.values().length === sent);
      return performance.now() - startedAt;
    };
    await eventually(
      async () => {
        await round();
        return subscriberOf(b, slow).isPageUnsent;
      },
      { withinMs: 20_000, what: 'the slow one to be stuck' },
    );
    for (let left = 11; left > 0; left--) waits.push(await round());
  } finally {
    reading(slow, true);
  }
  expect(waits.toSorted((one, two) => one - two)[5]).toBeLessThan(350);
  expect(await b.metric('log_entries_delivered_total{path="log"}')).toBeGreaterThan(0);
});

test('who never reads is closed, counted, and resumes where it stood', async () => {
  await using cluster = await startCluster(2, { ...RECOVERY, options: { slowReaderMs: 500 } }, redis);
  const [a, b] = pair(cluster);
  const [never, quick] = await Promise.all([b.member('room'), b.member('room')]);
  reading(never, false);
  const lost = b.socketOf(never);
  for (const n of numbers(60)) a.io.to('room').emit('e', n, { text: 'x'.repeat(300_000) });
  await quick.receives(numbers(60));
  await eventually(() => !lost.connected, { withinMs: 10_000, what: 'it to be closed' });
  expect(await b.metric('slow_consumers_closed_total')).toBe(1);
  reading(never, true);
  await never.connected(2);
  await eventually(() => never.values().length >= 60, { withinMs: 15_000 });
  expect(never.values()).toEqual(numbers(60));
  expect(never.connects).toEqual([false, true]);
});

test('events beyond what a socket may have unsent, and binary of a megabyte, arrive everywhere in order', async () => {
  await using cluster = await startCluster(2, RECOVERY, redis);
  const [a, b] = pair(cluster);
  const clients = [
    await a.member('room'),
    await b.member('room'),
    await b.member('room', { transports: ['polling'] }),
    await b.member('room', { transports: ['polling', 'websocket'] }),
  ];
  const binary = Buffer.alloc(1_000_000, 7);
  const text = 'é'.repeat(200_000);
  for (const n of numbers(6)) {
    a.io.to('room').emit('e', n * 3, binary, { deep: binary.subarray(0, 10) });
    b.io.to('room').emit('f', n, text);
    a.io.to('room').emit('e', n * 3 + 1, text);
    a.io.to('room').emit('e', n * 3 + 2);
  }
  for (const client of clients) {
    await client.receives(numbers(18));
    await client.receives(numbers(6), 'f');
    for (const { event, args } of client.got) {
      if (event === 'f') expect((args[1] as string).length).toBe(text.length);
      else if ((args[0] as number) % 3 === 0) expect((args[1] as Buffer).equals(binary)).toBe(true);
    }
  }
});

test('a write that fails without a callback ends its connection and nothing else; nothing is lost', async () => {
  await using cluster = await startCluster(2, RECOVERY, redis);
  const [a, b] = pair(cluster);
  const [client, other] = await Promise.all([b.member('room'), b.member('room')]);
  a.io.to('room').emit('e', 0);
  await client.receives([0]);
  const { conn } = b.socketOf(client) as unknown as { conn: { transport: { socket: { _socket: NetSocket } } } };
  // the next write goes into a socket that is gone, before anybody has heard of it
  const raw = conn.transport.socket._socket;
  let writes = 0;
  const { onEntry } = b.host.hub;
  b.host.hub.onEntry = (entry, partition) => {
    if (writes++ === 0) raw.destroy(new Error('planted'));
    onEntry.call(b.host.hub, entry, partition);
  };
  for (const n of numbers(20)) a.io.to('room').emit('e', n + 1);
  await other.receives(numbers(21));
  await client.connected(2);
  await client.receives(numbers(21));
  expect(client.connects).toEqual([false, true]);
});
