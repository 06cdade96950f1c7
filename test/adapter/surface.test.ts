import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '../harness/poll.js';
import { type Cluster, pair, startCluster, type TestClient, type TestServer } from './rig.js';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  cluster = await startCluster(2);
  [a, b] = pair(cluster);
});
afterAll(() => cluster?.stop());

let rooms = 0;
const aRoom = (): string => `room-${++rooms}`;

/** A client on each server, both in these rooms. */
async function both(room: string | number | readonly string[], namespace = '/'): Promise<[TestClient, TestClient]> {
  return Promise.all([a.member(room, { namespace }), b.member(room, { namespace })]);
}

/** Nobody else got anything: each client's own marker comes after all that was emitted before it. */
async function settled(...clients: readonly TestClient[]): Promise<void> {
  a.io.emit('settled');
  await eventually(() => clients.every(({ got }) => got.some(({ event }) => event === 'settled')));
}

describe('broadcasts', () => {
  test('io.emit reaches everybody on every server, once', async () => {
    const clients = await both(aRoom());
    a.io.emit('hello', 1, 'two', { three: [3] }, null);
    for (const client of clients) {
      await client.receives([1], 'hello');
      expect(client.got[0]?.args).toEqual([1, 'two', { three: [3] }, null]);
    }
    await settled(...clients);
    for (const client of clients) expect(client.values('hello')).toHaveLength(1);
  });

  test('a room gets its events and nobody else does; several rooms are a union', async () => {
    const [one, two, three] = [aRoom(), aRoom(), aRoom()];
    const inOne = await both(one);
    const inBoth = await both([one, two]);
    const inThree = await both(three);
    b.io.to(one).emit('e', 1);
    a.io.to(one).to(two).emit('e', 2);
    for (const client of [...inOne, ...inBoth]) await client.receives([1, 2]);
    await settled(...inThree, ...inOne, ...inBoth);
    for (const client of inThree) expect(client.values()).toEqual([]);
    for (const client of inBoth) expect(client.values()).toEqual([1, 2]);
  });

  test('except leaves out its rooms, and its sockets on other servers', async () => {
    const [room, not] = [aRoom(), aRoom()];
    const [here, there] = await both(room);
    const [hereNot, thereNot] = await both([room, not]);
    a.io.to(room).except(not).emit('e', 1);
    b.io
      .to(room)
      .except([here.socket.id as string, not])
      .emit('e', 2);
    await there.receives([1, 2]);
    await settled(here, hereNot, thereNot);
    expect(here.values()).toEqual([1]);
    for (const client of [hereNot, thereNot]) expect(client.values()).toEqual([]);
  });

  test('socket.broadcast and socket.to leave out the sender', async () => {
    const room = aRoom();
    const [here, there] = await both(room);
    a.socketOf(here).to(room).emit('e', 1);
    a.socketOf(here).broadcast.emit('e', 2);
    await there.receives([1, 2]);
    await settled(here);
    expect(here.values()).toEqual([]);
  });

  test('binary comes as it went, in every depth, beside text', async () => {
    const room = aRoom();
    const clients = await both(room);
    const bytes = Buffer.from([0, 1, 254, 255]);
    a.io.to(room).emit('e', bytes, { deep: [{ er: bytes, text: 'x' }] }, new Uint8Array([9, 8]).buffer, 'last');
    for (const client of clients) {
      await eventually(() => client.got.length === 1);
      expect(client.got[0]?.args).toEqual([bytes, { deep: [{ er: bytes, text: 'x' }] }, Buffer.from([9, 8]), 'last']);
    }
  });

  test('a room that is a number is another one than its digits', async () => {
    const [asNumber, asText] = [await b.member(77), await b.member('77')];
    a.io.to(77 as unknown as string).emit('e', 'number');
    a.io.to('77').emit('e', 'text');
    await asNumber.receives(['number']);
    await asText.receives(['text']);
    await settled(asNumber, asText);
    expect([asNumber.values(), asText.values()]).toEqual([['number'], ['text']]);
  });

  test('`local` stays on its server, also with rooms', async () => {
    const room = aRoom();
    const [here, there] = await both(room);
    a.io.local.to(room).emit('e', 1);
    a.io.to(room).emit('e', 2);
    await here.receives([1, 2]);
    await there.receives([2]);
  });

  test('`volatile` reaches other servers too, and is not logged', async () => {
    const room = aRoom();
    const [here, there] = await both(room);
    const before = await a.metric('log_entries_published_total');
    a.io.volatile.to(room).emit('e', 1);
    for (const client of [here, there]) await client.receives([1]);
    expect(await a.metric('log_entries_published_total')).toBe(before);
  });

  test('what JSON cannot hold throws where it is emitted, and stops nothing', async () => {
    const room = aRoom();
    const [, there] = await both(room);
    const cyclic: Record<string, unknown> = {};
    cyclic.self = cyclic;
    for (const bad of [cyclic, 1n]) expect(() => a.io.to(room).emit('e', bad)).toThrow();
    a.io.to(room).emit('e', 'good');
    await there.receives(['good']);
  });

  test('toJSON is asked once, also when it answers itself', async () => {
    const room = aRoom();
    const [, there] = await both(room);
    const odd = {
      value: 1,
      toJSON(): unknown {
        return this;
      },
    };
    a.io.to(room).emit('e', odd);
    a.io.to(room).emit('e', { toJSON: () => 'text' });
    await there.receives([{ value: 1 }, 'text']);
  });

  test('onAny and onAnyOutgoing hear what a broadcast brings, on either side', async () => {
    const room = aRoom();
    const [here, there] = await both(room);
    const outgoing: unknown[][] = [];
    b.socketOf(there).onAnyOutgoing((...args) => outgoing.push(args));
    a.io.to(room).emit('e', 1, Buffer.from('x'));
    a.io.to(room).emit('e', 2);
    a.io.volatile.to(room).emit('v', 3);
    await here.receives([1, 2]);
    await there.receives([1, 2]);
    await there.receives([3], 'v');
    expect(outgoing.sort()).toEqual([
      ['e', 1, Buffer.from('x')],
      ['e', 2],
      ['v', 3],
    ]);
  });
});

describe('namespaces', () => {
  test.each(['/plain', '/é', '/a b', '/日本', '/a/b', '/100%'])('%s is served like any other', async (name) => {
    for (const { io } of [a, b]) io.of(name);
    const [here, there] = await both('room', name);
    const elsewhere = await b.member('room');
    a.io.of(name).to('room').emit('e', 1);
    a.io.of(name).emit('e', 2, Buffer.from('é'));
    a.io.of(name).volatile.emit('v', 1);
    for (const client of [here, there]) {
      await client.receives([1, 2]);
      await client.receives([1], 'v');
      expect(client.got.find(({ args }) => args[0] === 2)?.args[1]).toEqual(Buffer.from('é'));
    }
    expect(await a.io.of(name).fetchSockets()).toHaveLength(2);
    await settled(elsewhere);
    expect(elsewhere.values()).toEqual([]);
  });

  test('several in one batch: each client gets its own, in order', async () => {
    const names = ['/n1', '/n2', '/n3', '/'];
    for (const { io } of [a, b]) for (const name of names) io.of(name);
    const clients = await Promise.all(names.map((namespace) => b.member('batch', { namespace })));
    for (let n = 0; n < 50; n++) for (const name of names) a.io.of(name).to('batch').emit('e', `${name}${n}`);
    for (const [index, name] of names.entries())
      await clients[index]?.receives(Array.from({ length: 50 }, (_, n) => `${name}${n}`));
  });

  test('one that is made later gets what is emitted later', async () => {
    a.io.of('/late').emit('e', 'before anybody was there');
    const [here] = await Promise.all([a.client({ namespace: '/late' })]);
    b.io.of('/late');
    const there = await b.client({ namespace: '/late' });
    a.io.of('/late').emit('e', 1);
    b.io.of('/late').emit('e', 2);
    // what was emitted before may still be on its way to the log while the first one connects
    const later = (client: typeof here) => client.values().filter((value) => typeof value === 'number');
    await Promise.all([here, there].map((client) => eventually(() => later(client).length === 2)));
    expect(later(here).toSorted()).toEqual([1, 2]);
    expect(later(there)).toEqual(later(here));
  });

  test('dynamic ones, by regular expression, reach all their children, and questions go on where none is', async () => {
    for (const { io } of [a, b]) io.of(/^\/dynamic-\d+$/);
    const here = await a.client({ namespace: '/dynamic-1' });
    const there = await b.client({ namespace: '/dynamic-1' });
    const other = await b.client({ namespace: '/dynamic-2' });
    a.io.of('/dynamic-1').emit('e', 1);
    for (const client of [here, there]) await client.receives([1]);
    b.io.of('/dynamic-2').emit('e', 2);
    await other.receives([2]);
    expect(await b.io.of('/dynamic-2').fetchSockets()).toHaveLength(1);
    expect(await a.io.of('/dynamic-1').fetchSockets()).toHaveLength(2);
  });
});

describe('acks', () => {
  test('a broadcast with acks gathers those of all servers', async () => {
    const room = aRoom();
    const clients = await both(room);
    for (const [index, { socket }] of clients.entries())
      socket.on('ask', (value, done) => done({ value, index, bytes: Buffer.from([index]) }));
    const answers = await a.io.to(room).timeout(5000).emitWithAck('ask', 'x');
    expect(answers.toSorted((one: { index: number }, two: { index: number }) => one.index - two.index)).toEqual([
      { value: 'x', index: 0, bytes: Buffer.from([0]) },
      { value: 'x', index: 1, bytes: Buffer.from([1]) },
    ]);
  });

  test('an ack without a value counts, wherever the client is', async () => {
    const room = aRoom();
    for (const { socket } of await both(room)) socket.on('ask', (done) => done());
    expect(await a.io.to(room).timeout(5000).emitWithAck('ask')).toEqual([undefined, undefined]);
  });

  test('nobody to ask: an empty answer at once', async () => {
    const startedAt = performance.now();
    expect(await a.io.to(aRoom()).timeout(5000).emitWithAck('ask')).toEqual([]);
    expect(performance.now() - startedAt).toBeLessThan(2000);
  });

  test('one that does not answer ends it at the time-out, with the answers of the others', async () => {
    const room = aRoom();
    const [here] = await both(room);
    here.socket.on('ask', (done) => done('here'));
    const [error, answers] = await new Promise<[Error | null, unknown[]]>((resolve) =>
      b.io
        .to(room)
        .timeout(300)
        .emit('ask', (failure: Error | null, values: unknown[]) => resolve([failure, values])),
    );
    expect(error?.message).toMatch(/timed out/);
    expect(answers).toEqual(['here']);
  });

  test('with `local` only this server is asked', async () => {
    const room = aRoom();
    for (const [index, { socket }] of (await both(room)).entries()) socket.on('ask', (done) => done(index));
    expect(await b.io.local.to(room).timeout(3000).emitWithAck('ask')).toEqual([1]);
  });

  test('of one socket, from either side, with and without a time-out', async () => {
    const [client] = await both(aRoom());
    client.socket.on('ask', (value, done) => done(value + 1));
    const socket = a.socketOf(client);
    socket.on('back', (value, done) => done(value * 2));
    expect(await socket.emitWithAck('ask', 1)).toBe(2);
    expect(await socket.timeout(3000).emitWithAck('ask', 2)).toBe(3);
    expect(await client.socket.emitWithAck('back', 4)).toBe(8);
    await expect(socket.timeout(50).emitWithAck('nobody listens')).rejects.toThrow(/timed out/);
  });

  test('a remote socket of fetchSockets is asked alone', async () => {
    const room = aRoom();
    const there = await b.member(room);
    there.socket.on('ask', (value, done) => done(`${value}!`));
    const [remote] = await a.io.in(room).fetchSockets();
    expect(await remote?.timeout(3000).emitWithAck('ask', 'you')).toBe('you!');
  });
});

describe('sockets of other servers', () => {
  test('fetchSockets shows id, rooms, data and handshake of each, by room and except', async () => {
    const [room, not] = [aRoom(), aRoom()];
    const [here, there] = await both(room);
    const thereNot = await b.member([room, not]);
    b.socketOf(there).data.name = 'there';
    b.socketOf(there).data.bytes = Buffer.from([1]);
    const sockets = await a.io.in(room).except(not).fetchSockets();
    expect(sockets.map(({ id }) => id).toSorted()).toEqual([here.socket.id, there.socket.id].toSorted());
    const remote = sockets.find(({ id }) => id === there.socket.id);
    expect(remote?.data).toEqual({ name: 'there', bytes: Buffer.from([1]) });
    expect([...(remote?.rooms ?? [])]).toEqual([there.socket.id, room]);
    expect(remote?.handshake.address).toMatch(/127/);
    expect(await a.io.in(room).fetchSockets()).toHaveLength(3);
    expect(await a.io.local.in(room).fetchSockets()).toHaveLength(1);
    expect(thereNot.socket.connected).toBe(true);
  });

  test('`data` that refers to itself hides itself and nothing else', async () => {
    const room = aRoom();
    const [, there] = await both(room);
    const { data } = b.socketOf(there);
    data.self = data;
    const sockets = await a.io.in(room).fetchSockets();
    expect(sockets).toHaveLength(2);
    expect(sockets.find(({ id }) => id === there.socket.id)?.data).toEqual({});
  });

  test('socketsJoin and socketsLeave move sockets everywhere, before what is emitted after them', async () => {
    const [room, next] = [aRoom(), aRoom()];
    const clients = await both(room);
    a.io.to(next).emit('e', 0);
    a.io.in(room).socketsJoin([next]);
    a.io.to(next).emit('e', 1);
    a.io.in(room).socketsLeave(next);
    a.io.to(next).emit('e', 2);
    a.io.to(room).emit('e', 3);
    for (const client of clients) await client.receives([1, 3]);
    expect(await b.io.in(next).fetchSockets()).toEqual([]);
  });

  test('a number is joined as a number', async () => {
    const room = aRoom();
    const [here, there] = await both(room);
    const wanted = 1_000_000 + rooms;
    b.io.in(room).socketsJoin(wanted as unknown as string);
    a.io.to(wanted as unknown as string).emit('e', 1);
    for (const client of [here, there]) await client.receives([1]);
    expect(a.socketOf(here).rooms).toContain(wanted);
  });

  test('a remote socket joins, leaves, gets events and is disconnected', async () => {
    const [room, next] = [aRoom(), aRoom()];
    const there = await b.member(room);
    const [remote] = await a.io.in(room).fetchSockets();
    remote?.join(next);
    remote?.emit('e', 'direct');
    a.io.to(next).emit('e', 'joined');
    await there.receives(['direct', 'joined']);
    remote?.leave(next);
    remote?.disconnect();
    await eventually(() => there.socket.disconnected);
    expect(await a.io.in(room).fetchSockets()).toEqual([]);
  });

  test('disconnectSockets ends those of its room, after what was emitted before it', async () => {
    const [room, spared] = [aRoom(), aRoom()];
    const clients = await both(room);
    const stays = await b.member(spared);
    a.io.to(room).emit('e', 'last words');
    a.io.in(room).disconnectSockets();
    for (const client of clients) {
      await client.receives(['last words']);
      await eventually(() => client.socket.disconnected);
    }
    await settled(stays);
    expect(stays.socket.connected).toBe(true);
  });

  test('disconnectSockets(true) closes the connection below', async () => {
    const room = aRoom();
    const there = await b.member(room);
    const reasons: string[] = [];
    b.socketOf(there).conn.on('close', (reason) => reasons.push(reason));
    a.io.in(room).disconnectSockets(true);
    await eventually(() => reasons.length === 1);
  });
});

describe('serverSideEmit', () => {
  test('reaches the other servers, in order, and not its own', async () => {
    const got: unknown[][] = [[], []];
    const name = `side-${++rooms}`;
    for (const [index, { io }] of [a, b].entries()) io.on(name, (...args: unknown[]) => got[index]?.push(args));
    for (let n = 0; n < 20; n++) a.io.serverSideEmit(name, n, { bytes: Buffer.from([n]) });
    await eventually(() => got[1]?.length === 20);
    expect(got).toEqual([[], Array.from({ length: 20 }, (_, n) => [n, { bytes: Buffer.from([n]) }])]);
  });

  test('with an ack gathers the answers of the others; a second ack of one changes nothing', async () => {
    const name = `side-${++rooms}`;
    b.io.on(name, (value: number, done: (answer: unknown) => void) => {
      done(value + 1);
      done('again');
    });
    expect(await a.io.serverSideEmitWithAck(name, 1)).toEqual([2]);
  });

  test('within a namespace', async () => {
    for (const { io } of [a, b]) io.of('/side');
    const got: unknown[] = [];
    b.io.on('in-side', () => got.push('wrong'));
    b.io.of('/side').on('in-side', (value: unknown) => got.push(value));
    a.io.of('/side').serverSideEmit('in-side', 1);
    await eventually(() => got.length === 1);
    expect(got).toEqual([1]);
  });

  test('one that does not answer is a time-out that says how many did', async () => {
    await using slow = await startCluster(2, { options: { requestsTimeout: 300 } }, cluster.redis);
    const [first, second] = pair(slow);
    second.io.on('ask', () => {});
    await expect(first.io.serverSideEmitWithAck('ask')).rejects.toThrow(/only 0 responses received out of 1/);
    expect(await first.metric('adapter_requests_total{outcome="timeout"}')).toBe(1);
  });
});

test('servers of another stream name are other servers', async () => {
  await using other = await startCluster(1, {}, cluster.redis);
  const [stranger] = other.servers;
  const theirs = await (stranger as TestServer).client();
  const [, ours] = await both(aRoom());
  a.io.emit('e', 'ours');
  stranger?.io.emit('e', 'theirs');
  await ours.receives(['ours']);
  await theirs.receives(['theirs']);
  expect(await stranger?.io.fetchSockets()).toHaveLength(1);
});
