import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { checkLedger, isClean, type Offer, printLedger, type Subscription } from '../harness/ledger.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { type ServerProcess, startCluster, startServerProcess, streamName, TestClient } from './rig.js';

const CYCLES = 22;
const RECOVERY = { connectionStateRecovery: { maxDisconnectionDuration: 60_000 } };

let redis: RedisProcess;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
});
afterAll(() => redis?.stop());

const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

async function join({ socket }: TestClient, room: string): Promise<void> {
  await socket.timeout(5000).emitWithAck('join', room);
}

describe.concurrent('SIGKILL', () => {
  test(`of a server under traffic, ${CYCLES} times in turn: nothing lost, doubled or out of order`, async () => {
    await using cluster = await startCluster(1, RECOVERY, redis);
    const [publisher] = cluster.servers;
    if (!publisher) throw new Error('no publisher');
    const servers = await Promise.all(numbers(3).map(() => startServerProcess(redis.url, cluster.name)));
    const serverOf = (n: number): ServerProcess => servers[n % servers.length] as ServerProcess;
    const clients = numbers(6).map((n) => new TestClient(serverOf(n).url));
    const at = new Map<TestClient, number>();
    const subscriptions = new Map<TestClient, Subscription[]>();
    const offers: Offer[] = [];
    let isOver = false;
    try {
      for (const [index, client] of clients.entries()) {
        await client.connected();
        const room = `room-${index % 3}`;
        await join(client, room);
        subscriptions.set(client, [{ room, at: Date.now() }]);
        at.set(client, index % servers.length);
        // the next of its list of servers, which may be down
        client.socket.io.on('reconnect_attempt', () => {
          const next = ((at.get(client) as number) + 1) % servers.length;
          at.set(client, next);
          client.moveTo(serverOf(next).url);
        });
      }
      // a join must be in its record before its server is killed
      await eventually(
        async () => (await publisher.io.in(numbers(3).map((n) => `room-${n}`)).fetchSockets()).length === 6,
      );
      const publishing = (async () => {
        while (!isOver) {
          const [id, room] = [`${offers.length}`, `room-${offers.length % 3}`];
          const startedAt = Date.now();
          publisher.io.to(room).emit('e', id, room);
          // what Redis didn't take is counted, below
          offers.push({ id, room, attempts: [{ outcome: { kind: 'unknown' }, startedAt, endedAt: startedAt }] });
          await new Promise((resolve) => setTimeout(resolve, 4));
        }
      })();
      let starting: Promise<void> = Promise.resolve();
      for (const cycle of numbers(CYCLES)) {
        const victim = serverOf(cycle);
        const there = clients.filter((client) => at.get(client) === cycle % servers.length);
        const before = there.map(({ connects }) => connects.length);
        expect(victim.lines.filter((line) => line.startsWith('unhandled'))).toEqual([]);
        await victim.kill();
        // one is on its way up while the next is killed
        await starting;
        starting = victim.start();
        for (const [index, client] of there.entries()) await client.connected((before[index] as number) + 1);
      }
      await starting;
      isOver = true;
      await publishing;
      for (const room of numbers(3).map((n) => `room-${n}`)) publisher.io.to(room).emit('end', room);
      await eventually(() => clients.every(({ got }) => got.at(-1)?.event === 'end'), { withinMs: 15_000 });
    } finally {
      isOver = true;
      for (const client of clients) client.stop();
      for (const server of servers) await server.kill();
    }
    const subscribers = clients.map((client, index) => ({
      name: `client ${index}`,
      subscriptions: subscriptions.get(client) ?? [],
      deliveries: client.got
        .filter(({ event }) => event === 'e')
        .map(({ args }) => ({ id: String(args[0]), position: String(args[2]) })),
      gaps: client.told.filter(({ event }) => event === 'holdfast:gap').map(({ args }) => args[0] as never),
    }));
    // each was taken: so each is due to all in its room
    for (const outcome of ['local', 'dropped', 'unknown'])
      expect(await publisher.metric(`adapter_unlogged_total{outcome="${outcome}"}`)).toBe(0);
    const places = new Map(
      subscribers.flatMap(({ deliveries }) => deliveries.map(({ id, position }) => [id, position])),
    );
    const accepted = offers.map((offer) => ({
      ...offer,
      attempts: offer.attempts.map((attempt) => ({
        ...attempt,
        outcome: { kind: 'accepted' as const, position: places.get(offer.id) as string },
      })),
    }));
    expect(accepted.filter(({ id }) => !places.has(id))).toEqual([]);
    const ledger = checkLedger({ offers: accepted, subscribers });
    expect(isClean(ledger), printLedger(ledger)).toBe(true);
    expect(ledger.accepted).toBeGreaterThan(500);
    // every one of them came back each time as who it was
    for (const client of clients) expect(client.connects.slice(1).filter((isRecovered) => !isRecovered)).toEqual([]);
    expect(clients.flatMap(({ connects }) => connects.slice(1)).length).toBeGreaterThan(CYCLES);
    // a ledger that misses one entry, or has one twice, says so
    const planted = structuredClone(subscribers);
    planted[0]?.deliveries.splice(10, 1);
    planted[1]?.deliveries.splice(10, 0, planted[1].deliveries[5] as never);
    expect(checkLedger({ offers: accepted, subscribers: planted })).toMatchObject({ lost: 1, doubled: 1 });
  }, 180_000);

  test('keeps rooms that were joined and left, and data, as they were', async () => {
    const name = streamName();
    await using first = await startServerProcess(redis.url, name);
    await using second = await startServerProcess(redis.url, name);
    await using client = new TestClient(first.url, { auth: { rooms: ['a', 'b'] } });
    await client.connected();
    await join(client, 'c');
    await client.socket.emitWithAck('leave', 'a');
    // saved by the sweep, since nothing else changes
    await client.socket.emitWithAck('set', { step: 7, bytes: Buffer.from([1]) });
    const { _pid: pid } = client.socket as unknown as { _pid: string };
    const seen = new Redis(redis.url);
    await eventually(async () => {
      const [key] = await seen.keys(`*${name}*resume:{${pid}}`);
      return key !== undefined && ((await seen.get(key)) ?? '').includes('\\"step\\":7');
    });
    seen.disconnect();
    client.moveTo(second.url);
    const { id } = client.socket;
    await first.kill();
    await client.connected(2);
    expect(client.connects).toEqual([false, true]);
    const { data, rooms } = await client.socket.emitWithAck('get');
    expect(data).toEqual({ step: 7, bytes: Buffer.from([1]) });
    expect(rooms.toSorted()).toEqual(['b', 'c', id].toSorted());
  });
});

describe.concurrent('membership', () => {
  test('a SIGKILLed server costs questions its lease and no time-out; one that came later is asked', async () => {
    await using cluster = await startCluster(1, { options: { requestsTimeout: 30_000 } }, redis);
    const [asking] = cluster.servers;
    if (!asking) throw new Error('no server');
    const client = await asking.client();
    client.socket.on('ask', (done) => done('here'));
    await using victim = await startServerProcess(redis.url, cluster.name, { RECOVERY_MS: '0' });
    await using there = new TestClient(victim.url);
    await there.connected();
    there.socket.on('ask', (done) => done('there'));
    expect(await asking.io.fetchSockets()).toHaveLength(2);
    expect(await asking.io.serverSideEmitWithAck('whoami')).toHaveLength(1);
    expect((await asking.io.timeout(5000).emitWithAck('ask')).toSorted()).toEqual(['here', 'there']);

    there.socket.io.reconnection(false);
    victim.pause();
    const startedAt = performance.now();
    const questions = [
      asking.io.fetchSockets().then((sockets) => sockets.length),
      asking.io.serverSideEmitWithAck('whoami').then((answers) => answers.length),
      asking.io.timeout(30_000).emitWithAck('ask'),
    ];
    await victim.kill();
    expect(await Promise.all(questions)).toEqual([1, 0, ['here']]);
    expect(performance.now() - startedAt).toBeLessThan(3000 + 500 + 1500);

    await using later = await startServerProcess(redis.url, cluster.name, { RECOVERY_MS: '0' });
    await using newcomer = new TestClient(later.url);
    await newcomer.connected();
    expect(await asking.io.fetchSockets()).toHaveLength(2);
    expect(await asking.io.serverSideEmitWithAck('whoami')).toHaveLength(1);
  });

  test('a server that left is no longer asked, at once', async () => {
    await using cluster = await startCluster(2, {}, redis);
    const [stays, leaves] = cluster.servers;
    await leaves?.io.close();
    const startedAt = performance.now();
    expect(await stays?.io.fetchSockets()).toEqual([]);
    expect(await stays?.io.of('/').adapter.serverCount()).toBe(1);
    expect(performance.now() - startedAt).toBeLessThan(1000);
  });
});
