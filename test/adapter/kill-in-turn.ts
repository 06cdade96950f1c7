import { expect } from 'vitest';
import { checkLedger, isClean, type Offer, printLedger, type Subscription } from '../harness/ledger.js';
import { eventually } from '../harness/poll.js';
import type { RedisProcess } from '../harness/redis.js';
import { type ServerProcess, startCluster, startServerProcess, TestClient } from './rig.js';

const RECOVERY = { connectionStateRecovery: { maxDisconnectionDuration: 60_000 } };
const EVENTS = 500;

const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

export async function join({ socket }: TestClient, room: string): Promise<void> {
  await socket.timeout(5000).emitWithAck('join', room);
}

/** Of three servers with clients one after another is killed under traffic; each client has everything once, in order. */
export async function killInTurn(redis: RedisProcess, cycles: number): Promise<void> {
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
      while (!isOver || offers.length <= EVENTS) {
        const [id, room] = [`${offers.length}`, `room-${offers.length % 3}`];
        const startedAt = Date.now();
        publisher.io.to(room).emit('e', id, room);
        // what Redis didn't take is counted, below
        offers.push({ id, room, attempts: [{ outcome: { kind: 'unknown' }, startedAt, endedAt: startedAt }] });
        await new Promise((resolve) => setTimeout(resolve, 4));
      }
    })();
    let starting: Promise<void> = Promise.resolve();
    for (const cycle of numbers(cycles)) {
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
  const places = new Map(subscribers.flatMap(({ deliveries }) => deliveries.map(({ id, position }) => [id, position])));
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
  expect(ledger.accepted).toBeGreaterThan(EVENTS);
  // every one of them came back each time as who it was
  for (const client of clients) expect(client.connects.slice(1).filter((isRecovered) => !isRecovered)).toEqual([]);
  expect(clients.flatMap(({ connects }) => connects.slice(1)).length).toBeGreaterThan(cycles);
  // a ledger that misses one entry, or has one twice, says so
  const planted = structuredClone(subscribers);
  planted[0]?.deliveries.splice(10, 1);
  planted[1]?.deliveries.splice(10, 0, planted[1].deliveries[5] as never);
  expect(checkLedger({ offers: accepted, subscribers: planted })).toMatchObject({ lost: 1, doubled: 1 });
}
