import { Redis } from 'ioredis';
import type { Socket } from 'socket.io';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { RawClient } from '../gateway/raw-client.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { type Cluster, pair, type ServerSettings, startCluster, TestClient, type TestServer } from './rig.js';

const RECOVERY = { connectionStateRecovery: { maxDisconnectionDuration: 60_000 } };

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  cluster = await startCluster(2, RECOVERY);
  [a, b] = pair(cluster);
});
afterAll(() => cluster?.stop());

let rooms = 0;
const aRoom = (): string => `room-${++rooms}`;
const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

/** Two servers of their own, with the Redis of this file. */
const own = (settings: ServerSettings = {}): Promise<Cluster> =>
  startCluster(2, { ...RECOVERY, ...settings }, cluster.redis);

/** Its connection is lost, which both sides have noticed, and it comes back only when told. */
async function away(client: TestClient): Promise<void> {
  const { id } = client.socket;
  client.socket.io.reconnection(false);
  client.cut();
  await eventually(async () => !client.socket.connected && (await a.io.in(id as string).fetchSockets()).length === 0);
}

async function back(client: TestClient, server: TestServer): Promise<void> {
  const count = client.connects.length;
  client.moveTo(server.url);
  client.socket.io.reconnection(true);
  client.socket.connect();
  await client.connected(count + 1);
}

describe('a client that comes back', () => {
  test.each([
    ['to the same server', 0],
    ['to another one', 1],
  ])('%s gets what it missed, in order, and has its id, rooms and data', async (_where, index) => {
    const [room, joined, left] = [aRoom(), aRoom(), aRoom()];
    const client = await a.member([room, left]);
    const socket = a.socketOf(client);
    socket.data.user = { name: 'é', bytes: Buffer.from([1, 2]) };
    socket.join(joined);
    socket.leave(left);
    const { id } = client.socket;
    a.io.to(room).emit('e', 'seen', Buffer.from('seen'));
    await client.receives(['seen']);
    await away(client);
    for (const n of numbers(5)) (n % 2 ? a : b).io.to([room, joined]).emit('e', n, Buffer.from([n]));
    a.io.to(left).emit('e', 'not for it');
    await back(client, index === 0 ? a : b);
    await eventually(() => client.values().length === 6);
    b.io.to(joined).emit('e', 'live');
    await eventually(() => client.values().at(-1) === 'live');
    expect(client.values().slice(1, -1).toSorted()).toEqual(numbers(5));
    expect(client.connects).toEqual([false, true]);
    expect(client.socket.id).toBe(id);
    const restored = (index === 0 ? a : b).socketOf(client);
    expect(restored.data).toEqual({ user: { name: 'é', bytes: Buffer.from([1, 2]) } });
    expect([...restored.rooms].toSorted()).toEqual([id, room, joined].toSorted());
    expect(client.got.find(({ args }) => args[0] === 3)?.args[1]).toEqual(Buffer.from([3]));
  });

  test('without having received anything resumes all the same', async () => {
    const room = aRoom();
    await using proxy = await startTcpProxy(a.port);
    await using client = new TestClient(`http://127.0.0.1:${proxy.port}`);
    await client.connected();
    a.socketOf(client).join(room);
    await eventually(async () => (await a.metric('resume_records_total{outcome="saved"}')) > 0);
    // a client that knows no position sends none
    (client.socket as unknown as { _lastOffset: unknown })._lastOffset = undefined;
    await away(client);
    a.io.to(room).emit('e', 1);
    await back(client, b);
    await client.receives([1]);
    expect(client.connects).toEqual([false, true]);
  });

  test('in a namespace of its own, on polling, with its own rooms there', async () => {
    for (const { io } of [a, b]) io.of('/é');
    const room = aRoom();
    const client = await a.member(room, { namespace: '/é', transports: ['polling'] });
    a.io.of('/é').to(room).emit('e', 1);
    await client.receives([1]);
    await away(client);
    b.io.of('/é').to(room).emit('e', 2);
    await back(client, b);
    b.io.of('/é').to(room).emit('e', 3);
    await client.receives([1, 2, 3]);
    expect(client.connects).toEqual([false, true]);
  });

  test('again and again, from server to server, sees each event once', async () => {
    const room = aRoom();
    const client = await a.member(room);
    let n = 0;
    for (let cycle = 1; cycle <= 8; cycle++) {
      a.io.to(room).emit('e', n++);
      if (cycle % 2 === 0) await eventually(() => client.values().length === n);
      await away(client);
      b.io.to(room).emit('e', n++);
      await back(client, cycle % 2 ? b : a);
    }
    await client.receives(numbers(n));
    expect(client.connects).toEqual([false, ...numbers(8).map(() => true)]);
  });

  test('over polling while its old connection is still open gets its session', async () => {
    const room = aRoom();
    const client = await a.member(room, { transports: ['polling'] });
    const lost = a.socketOf(client);
    a.io.to(room).emit('e', 1);
    await client.receives([1]);
    // the client is gone and nobody has told the server
    const { engine } = client.socket.io;
    const transport = engine.transport as unknown as { doClose(): void; doPoll(): void; doWrite(): void };
    transport.doClose = transport.doWrite = transport.doPoll = () => {};
    client.socket.io.reconnection(false);
    client.cut();
    a.io.to(room).emit('e', 2);
    await back(client, a);
    await client.receives([1, 2]);
    expect(client.connects).toEqual([false, true]);
    expect(lost.connected).toBe(false);
  });
});

describe('data', () => {
  test('that changed after the record was written is in the next one', async () => {
    const room = aRoom();
    const client = await a.member(room);
    const socket = a.socketOf(client);
    const { pid } = socket as unknown as { pid: string };
    socket.data.step = 1;
    const record = async (): Promise<string> => {
      const found = await a.host.records.find(pid);
      return typeof found === 'object' ? (found.state.data ?? '') : '';
    };
    await eventually(async () => (await record()).includes('"step":1'), { what: 'the sweep to save it' });
    socket.data.step = 2;
    await away(client);
    await back(client, b);
    expect(b.socketOf(client).data).toEqual({ step: 2 });
  });

  test('that refers to itself, or that JSON cannot hold, is left out, and the rest is restored', async () => {
    const room = aRoom();
    for (const odd of ['circle', 'bigint']) {
      const client = await a.member(room);
      const { data } = a.socketOf(client);
      data.odd = odd === 'circle' ? data : 1n;
      await away(client);
      a.io.to(room).emit('e', odd);
      await back(client, b);
      await client.receives([odd]);
      expect(client.connects).toEqual([false, true]);
      expect(b.socketOf(client).data).toEqual({});
      client.stop();
    }
  });
});

describe('middlewares', () => {
  /** Every frame that a server writes to one connection. */
  async function refusedBy(settings: ServerSettings): Promise<{ texts: readonly string[]; refusal: unknown }> {
    const refusing = { isOn: false };
    await using servers = await own({
      ...settings,
      onServer: (io) => void io.use((_socket, next) => next(refusing.isOn ? new Error('banned') : undefined)),
    });
    const [first, second] = pair(servers);
    const before = new RawClient(first.port);
    const { pid, sid } = await before.open({});
    first.io.in(sid as string).socketsJoin('room');
    first.io.to('room').emit('e', 'seen');
    const seen = await before.next(/"seen"/);
    const offset = JSON.parse(seen.slice(2)).at(-1);
    await before.stop();
    await eventually(async () => (await first.io.fetchSockets()).length === 0);
    for (const n of numbers(3)) first.io.to('room').emit('e', `secret ${n}`);
    refusing.isOn = true;
    await using after = new RawClient(second.port);
    const refusal = await after.open({ pid, offset });
    second.io.emit('marker');
    await second.io.fetchSockets();
    refusing.isOn = false;
    await using again = new RawClient(second.port);
    const answer = await again.open({ pid, offset });
    expect(answer).toMatchObject({ pid, sid });
    await again.next(/secret 2/);
    expect(again.texts.filter((text) => text.includes('secret'))).toHaveLength(3);
    return { texts: after.texts, refusal };
  }

  test('that refuse a returning client: nothing of what it missed goes out; admitted later, it gets all of it once', async () => {
    const recovery = { maxDisconnectionDuration: 60_000, skipMiddlewares: false };
    const { texts, refusal } = await refusedBy({ connectionStateRecovery: recovery });
    expect(refusal).toEqual({ message: 'banned' });
    expect(texts.join()).not.toMatch(/secret/);
  });

  test('are skipped for a returning client if the server says so', async () => {
    const recovery = { maxDisconnectionDuration: 60_000, skipMiddlewares: true };
    let runs = 0;
    await using servers = await own({
      connectionStateRecovery: recovery,
      onServer: (io) =>
        void io.use((_socket, next) => {
          runs++;
          next();
        }),
    });
    const [first, second] = pair(servers);
    const client = await first.member('room');
    await away(client);
    first.io.to('room').emit('e', 1);
    await back(client, second);
    await client.receives([1]);
    expect(client.connects).toEqual([false, true]);
    expect(runs).toBe(1);
  });

  test('that take their time: what is emitted meanwhile comes once, behind what was missed', async () => {
    let release: (() => void) | undefined;
    const recovery = { maxDisconnectionDuration: 60_000, skipMiddlewares: false };
    await using servers = await own({
      connectionStateRecovery: recovery,
      onServer: (io) =>
        void io.use((socket, next) => {
          if (socket.recovered) release = next;
          else next();
        }),
    });
    const [first, second] = pair(servers);
    const client = await first.member('room');
    await away(client);
    first.io.to('room').emit('e', 1);
    const coming = back(client, second);
    await eventually(() => release !== undefined);
    first.io.to('room').emit('e', 2);
    await second.io.fetchSockets();
    release?.();
    await coming;
    first.io.to('room').emit('e', 3);
    await client.receives([1, 2, 3]);
  });
});

describe('who brings', () => {
  const opened = async (server: TestServer, auth: object): Promise<[RawClient, { pid?: string; sid?: string }]> => {
    const client = new RawClient(server.port);
    return [client, await client.open(auth)];
  };

  test('a pid that nobody has, or that is no text, starts afresh', async () => {
    for (const pid of ['a'.repeat(20), '', '../x', 'x'.repeat(5000), 7, null, {}]) {
      const [client, answer] = await opened(a, { pid, offset: '' });
      expect(answer.pid).not.toBe(pid);
      expect(answer.sid).toBeTruthy();
      await client.stop();
    }
  });

  test('a pid at the same instant as another: one has the session, each event once', async () => {
    for (const round of numbers(4)) {
      const room = aRoom();
      const [lost, { pid, sid }] = await opened(a, {});
      a.io.in(sid as string).socketsJoin(room);
      await a.io.fetchSockets();
      await lost.stop();
      await eventually(async () => (await a.io.in(sid as string).fetchSockets()).length === 0);
      a.io.to(room).emit('e', 'missed');
      const two = await Promise.all([opened(a, { pid }), opened(round < 2 ? a : b, { pid })]);
      const holders = (): RawClient[] =>
        two.filter(([client, answer]) => answer.pid === pid && !client.isClosed).map(([client]) => client);
      await eventually(() => holders().length === 1);
      await holders()[0]?.next(/"missed"/);
      a.io.to(room).emit('e', 'live');
      await holders()[0]?.next(/"live"/);
      expect(holders()[0]?.texts.filter((text) => text.includes('"missed"'))).toHaveLength(1);
      for (const [client] of two) await client.stop();
    }
  });

  test('the pid of a connection that still lives takes it over, and the old one ends', async () => {
    const [before, { pid, sid }] = await opened(a, {});
    await eventually(async () => (await a.io.fetchSockets()).some(({ id }) => id === sid));
    a.io.in(sid as string).socketsJoin('taken');
    await a.io.fetchSockets();
    // its record is written in the turn after
    await eventually(() => [...a.host.sessions.values()].every(({ isDirty }) => !isDirty));
    const [after, answer] = await opened(b, { pid });
    expect(answer).toMatchObject({ pid, sid });
    await before.closed();
    a.io.to('taken').emit('e', 'once');
    await after.next(/"once"/);
    expect(before.texts.join()).not.toMatch(/"once"/);
    await after.stop();
  });

  test.each(['no position', 'x:0:1-1', '0-0', '', 'undefined', '1234567890-0'])(
    'the offset %j with a good pid: never more than once, and true about it',
    async (offset) => {
      const room = aRoom();
      const [before, { pid, sid }] = await opened(a, {});
      a.io.in(sid as string).socketsJoin(room);
      a.io.to(room).emit('e', 'seen');
      await before.next(/"seen"/);
      await before.stop();
      await eventually(async () => (await a.io.in(sid as string).fetchSockets()).length === 0);
      a.io.to(room).emit('e', 'missed');
      const [after, answer] = await opened(b, { pid, offset });
      if (offset === '') expect(answer.pid).toBe(pid);
      else expect(answer.pid).not.toBe(pid);
      await after.stop();
    },
  );

  test('its pid and offset: nobody sees them, neither handlers nor other servers', async () => {
    const room = aRoom();
    const client = await a.member(room, { auth: { name: 'x' } });
    a.io.to(room).emit('e', 1);
    await client.receives([1]);
    await away(client);
    await back(client, b);
    expect(b.socketOf(client).handshake.auth).toEqual({ name: 'x' });
    const [remote] = await a.io.in(room).fetchSockets();
    expect(remote?.handshake.auth).toEqual({ name: 'x' });
  });
});

describe('a position', () => {
  const offsetOf = ({ socket }: TestClient): string => (socket as unknown as { _lastOffset: string })._lastOffset;

  test('stays one whatever text an event ends with, and however it was emitted', async () => {
    const room = aRoom();
    const client = await a.member(room);
    const socket: Socket = a.socketOf(client);
    client.socket.on('ask', (_text, done) => done());
    const acks: string[] = [];
    const emissions = [
      () => socket.emit('e', 1, 'text'),
      () => a.io.to(room).emit('e', 2, 'text'),
      () => a.io.local.to(room).emit('e', 3, 'text'),
      () => a.io.volatile.to(room).emit('e', 4, 'text'),
      () => b.io.volatile.to(room).emit('e', 5, 'text'),
      () => socket.volatile.emit('e', 6, 'text'),
      () => socket.timeout(2000).emit('ask', 'text', () => acks.push('one')),
      () => {
        const asked = b.io.to(room).timeout(2000).emitWithAck('ask', 'text');
        void asked.then(() => acks.push('all'));
      },
      () => b.io.to(room).emit('e', 7, 'x:0:1-1'),
      () => socket.emit('text only'),
    ];
    for (const [index, emit] of emissions.entries()) {
      emit();
      await eventually(() => client.got.length === index + 1);
      expect(offsetOf(client), JSON.stringify(client.got.at(-1))).toMatch(/^[\w-]+:0:\d+-\d+$/);
    }
    await eventually(() => acks.length === 2);
    // the text is there still, and one position at most behind it
    for (const { event, args } of client.got.filter((got) => got.event === 'e'))
      expect([event, args.length, args[1]]).toEqual(['e', 3, args[0] === 7 ? 'x:0:1-1' : 'text']);
    await away(client);
    a.io.to(room).emit('e', 8);
    await back(client, b);
    await eventually(() => client.values().includes(8));
    expect(client.values()).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
  });

  test('that was trimmed away: the client starts afresh and hears that it was not recovered', async () => {
    await using servers = await own({ options: { maxLen: 160 } });
    const [first, second] = pair(servers);
    const client = await first.member('room');
    first.io.to('room').emit('e', 'seen');
    await client.receives(['seen']);
    await away(client);
    // beyond the hard cap, which cuts while it appends
    for (const n of numbers(1000)) first.io.to('other').emit('e', n);
    const { hub } = second.host;
    await eventually(() => hub.dispatched(0).offset > 1000);
    hub.ring(0).reset(hub.ring(0).next);
    await back(client, second);
    expect(client.connects).toEqual([false, false]);
    expect(await second.metric('recovery_total{result="gap"}')).toBe(1);
  });

  test('reaches a client right after it connected, and again while nothing happens', async () => {
    const published = await a.metric('log_entries_published_total');
    const client = await a.client();
    await eventually(() => client.told.length === 1);
    expect(await a.metric('log_entries_published_total')).toBe(published);
    expect(client.told[0]).toMatchObject({ event: 'holdfast:position', args: [offsetOf(client)] });
    const { host } = a.io.of('/').adapter as unknown as {
      host: { sessions: Map<string, { socket: { id: string }; subscriber: { positionToldAt: number } }> };
    };
    // as if nothing had been told for a long time
    for (const { socket, subscriber } of host.sessions.values())
      if (socket.id === client.socket.id) subscriber.positionToldAt -= 60_000;
    await eventually(() => client.told.length === 2, { what: 'the sweep to tell an idle client' });
  });

  test('is nothing that clients of a server without recovery get', async () => {
    await using servers = await startCluster(2, {}, cluster.redis);
    const [first, second] = pair(servers);
    const client = await second.member('room');
    first.io.to('room').emit('e', 1, 'text');
    first.io.to('room').emit('e', 2);
    await client.receives([1, 2]);
    expect(client.got.map(({ args }) => args)).toEqual([[1, 'text'], [2]]);
    expect(client.told).toEqual([]);
  });
});

describe('while a client is away', () => {
  test('joins and leaves of others are applied in their place', async () => {
    const [room, next] = [aRoom(), aRoom()];
    const client = await a.member(room);
    a.io.to(room).emit('e', 'seen');
    await client.receives(['seen']);
    await away(client);
    b.io.to(next).emit('e', 'too early');
    b.io.in(room).socketsJoin(next);
    b.io.to(next).emit('e', 1);
    b.io.in(room).socketsLeave(room);
    b.io.to(room).emit('e', 'too late');
    b.io.to(next).emit('e', 2);
    await back(client, b);
    await client.receives(['seen', 1, 2]);
    expect([...b.socketOf(client).rooms]).toEqual([client.socket.id, next]);
    a.io.to(next).emit('e', 3);
    await client.receives(['seen', 1, 2, 3]);
  });

  test('a disconnect ends it when it comes back, behind what came before', async () => {
    const room = aRoom();
    const client = await a.member(room);
    await away(client);
    a.io.to(room).emit('e', 1);
    a.io.in(room).disconnectSockets();
    a.io.to(room).emit('e', 'too late');
    client.moveTo(b.url);
    client.socket.connect();
    await eventually(() => client.connects.length === 2 && client.socket.disconnected);
    expect(client.connects).toEqual([false, true]);
    expect(client.values()).toEqual([1]);
  });
});

test('a client that leaves on purpose is not resumed, nor one that the server sent away', async () => {
  const room = aRoom();
  for (const leave of ['client', 'server']) {
    const client = await a.member(room);
    const { id } = client.socket;
    if (leave === 'client') client.socket.disconnect();
    else a.socketOf(client).disconnect();
    await eventually(() => client.socket.disconnected);
    a.io.to(room).emit('e', 'missed');
    await back(client, a);
    expect(client.connects).toEqual([false, false]);
    expect(client.socket.id).not.toBe(id);
    expect(client.values()).toEqual([]);
    client.stop();
  }
});

describe('FLUSHALL', () => {
  test('under traffic: clients go on, and those who come back are told that they lost something, or lose nothing', async () => {
    const onServer = (io: TestServer['io']): void => void io.on('connection', (socket) => void socket.join('room'));
    await using servers = await startCluster(2, { ...RECOVERY, onServer });
    const [first, second] = pair(servers);
    const stays = await second.client();
    const returns = await first.client();
    let n = 0;
    const publish = (count: number): void => {
      for (let left = count; left > 0; left--) first.io.to('room').emit('e', n++);
    };
    publish(50);
    await Promise.all([stays, returns].map((client) => eventually(() => client.values().length === 50)));
    await away(returns);
    publish(20);
    const admin = new Redis(servers.redis.url);
    await admin.flushall();
    admin.disconnect();
    await eventually(
      async () => {
        publish(1);
        return (stays.values().at(-1) as number) >= 75;
      },
      { withinMs: 15_000, what: 'delivery to go on' },
    );
    await back(returns, second);
    publish(5);
    await eventually(() => [stays, returns].every((client) => client.values().at(-1) === n - 1), { withinMs: 10_000 });
    for (const client of [stays, returns]) {
      const values = client.values() as number[];
      expect(values).toEqual([...new Set(values)].toSorted((one, two) => one - two));
      const isWhole = values.length === n - (values[0] as number);
      const wasTold = client.told.some(({ event }) => event === 'holdfast:gap') || client.connects.at(-1) === false;
      expect(isWhole || wasTold).toBe(true);
    }
  });
});
