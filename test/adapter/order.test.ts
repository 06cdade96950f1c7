import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '../harness/poll.js';
import { type Cluster, pair, startCluster, type TestClient, type TestServer } from './rig.js';

let cluster: Cluster;
let a: TestServer;
let b: TestServer;

beforeAll(async () => {
  cluster = await startCluster(2, { connectionStateRecovery: { maxDisconnectionDuration: 60_000 } });
  [a, b] = pair(cluster);
});
afterAll(() => cluster?.stop());

let rooms = 0;
const aRoom = (): string => `room-${++rooms}`;
const numbers = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

test('two servers that emit at the same time: every client everywhere sees one sequence', async () => {
  const room = aRoom();
  const clients = await Promise.all(numbers(6).map((n) => (n % 2 === 0 ? a : b).member(room)));
  const emit = async ({ io }: TestServer, name: string): Promise<void> => {
    for (const n of numbers(300)) {
      io.to(room).emit('e', `${name}${n}`);
      if (n % 7 === 0) await new Promise(setImmediate);
    }
  };
  await Promise.all([emit(a, 'a'), emit(b, 'b')]);
  await eventually(() => clients.every((client) => client.values().length === 600));
  const [first, ...others] = clients.map((client) => client.values());
  for (const other of others) expect(other).toEqual(first);
  for (const name of ['a', 'b'])
    expect(first?.filter((value) => String(value).startsWith(name))).toEqual(numbers(300).map((n) => `${name}${n}`));
});

test('joins, leaves and emits of one server keep their order everywhere', async () => {
  const [room, moving] = [aRoom(), aRoom()];
  const clients = [await a.member(room), await b.member(room)];
  for (const n of numbers(60)) {
    if (n % 4 === 0) a.io.in(room).socketsJoin(moving);
    a.io.to(moving).emit('e', n);
    if (n % 4 === 2) a.io.in(room).socketsLeave(moving);
  }
  a.io.to(room).emit('end');
  const expected = numbers(60).filter((n) => n % 4 < 3);
  for (const client of clients) {
    await eventually(() => client.got.at(-1)?.event === 'end');
    expect(client.values()).toEqual(expected);
  }
});

describe('what is not logged keeps its place behind the logged events of its server', () => {
  /** `[event, place of the logged event before it]`: each must come after the logged ones that were emitted before it. */
  const overtaken = ({ got }: TestClient): unknown[] => {
    const faults: unknown[] = [];
    let newest = -1;
    for (const { event, args } of got) {
      if (event === 'e') newest = args[0] as number;
      else if ((args[0] as number) > newest) faults.push([event, args[0], newest]);
    }
    return faults;
  };

  /** Logged events, with something else after each third. */
  async function mixed(emit: (room: string, after: number) => void): Promise<TestClient[]> {
    const room = aRoom();
    const clients = [await a.member(room), await b.member(room)];
    for (const { socket } of clients) socket.on('ask', (_n, _text, done) => done('yes'));
    for (const n of numbers(90)) {
      a.io.to(room).emit('e', n);
      if (n % 3 === 0) emit(room, n);
      if (n % 10 === 0) await new Promise(setImmediate);
    }
    return clients;
  }

  test('a broadcast with acks does not overtake logged events', async () => {
    const asked: Promise<unknown>[] = [];
    const clients = await mixed((room, n) => asked.push(a.io.to(room).timeout(10_000).emitWithAck('ask', n, 'text')));
    expect(await Promise.all(asked)).toEqual(numbers(30).map(() => ['yes', 'yes']));
    for (const client of clients) {
      expect(client.values('ask')).toHaveLength(30);
      expect(overtaken(client)).toEqual([]);
    }
  });

  test('a volatile one does not', async () => {
    const clients = await mixed((room, n) => a.io.volatile.to(room).emit('volatile', n));
    for (const client of clients) {
      // one that comes while a write is under way is dropped, as in any Socket.IO server
      await eventually(() => client.values().length === 90 && client.values('volatile').length > 0);
      expect(overtaken(client)).toEqual([]);
    }
  });

  test('a local one does not, with and without acks', async () => {
    const [client] = await mixed((room, n) => {
      a.io.local.to(room).emit('local', n);
      a.io.local
        .to(room)
        .timeout(5000)
        .emit('ask', n, 'text', () => {});
    });
    await eventually(() => client?.values('local').length === 30 && client.values('ask').length === 30);
    expect(overtaken(client as TestClient)).toEqual([]);
  });

  test('it leaves as it was emitted, whatever its arguments become while it waits', async () => {
    const room = aRoom();
    const clients = [await a.member(room), await b.member(room)];
    for (const { socket } of clients) socket.on('ask', (_n, done) => done());
    const changing = { n: 0 };
    for (const name of ['local', 'volatile', 'ask', 'e']) {
      changing.n++;
      a.io.to(room).emit('before', changing);
      if (name === 'local') a.io.local.to(room).emit(name, changing);
      else if (name === 'volatile') a.io.volatile.to(room).emit(name, changing);
      else if (name === 'ask')
        a.io
          .to(room)
          .timeout(5000)
          .emit(name, changing, () => {});
      else a.io.to(room).emit(name, changing);
    }
    changing.n = 100;
    for (const client of clients) await client.receives([{ n: 4 }]);
    expect(clients[0]?.values('local')).toEqual([{ n: 1 }]);
    for (const client of clients) {
      for (const value of client.values('volatile')) expect(value).toEqual({ n: 2 });
      await client.receives([{ n: 3 }], 'ask');
      await client.receives(
        [1, 2, 3, 4].map((n) => ({ n })),
        'before',
      );
    }
  });

  test('a disconnect of this server alone comes after what was emitted before it', async () => {
    const room = aRoom();
    const client = await a.member(room);
    for (const n of numbers(20)) a.io.to(room).emit('e', n);
    a.io.local.in(room).disconnectSockets();
    await eventually(() => client.socket.disconnected);
    expect(client.values()).toEqual(numbers(20));
  });

  test('fetchSockets, serverSideEmit with an ack and a count of rooms see the joins before them', async () => {
    const [room, next] = [aRoom(), aRoom()];
    await Promise.all([a.member(room), b.member(room)]);
    for (const n of numbers(20)) {
      a.io.in(room).socketsJoin(`${next}-${n}`);
      expect(await a.io.in(`${next}-${n}`).fetchSockets()).toHaveLength(2);
      a.io.in(`${next}-${n}`).socketsLeave(`${next}-${n}`);
      expect(await a.io.in(`${next}-${n}`).fetchSockets()).toHaveLength(0);
    }
  });

  test('the check above sees a planted one that overtakes', () => {
    const got = [
      { event: 'e', args: [0] },
      { event: 'ask', args: [1] },
      { event: 'e', args: [1] },
      { event: 'volatile', args: [1] },
    ];
    expect(overtaken({ got } as unknown as TestClient)).toEqual([['ask', 1, 0]]);
  });

  test('and an adapter that asks at once is caught by it', async () => {
    const { host } = a;
    const { afterOwn } = host;
    host.afterOwn = (_partition, run) => run();
    try {
      const clients = await mixed((room, n) =>
        a.io
          .to(room)
          .timeout(10_000)
          .emit('ask', n, 'text', () => {}),
      );
      await eventually(() => clients.every((client) => client.values().length === 90));
      expect(clients.flatMap(overtaken).length).toBeGreaterThan(0);
    } finally {
      host.afterOwn = afterOwn;
    }
  });
});

describe('what is written to one socket keeps its place among the broadcasts that have been dispatched for it', () => {
  test('socket.emit from a handler comes after the event that caused it, and nothing is split', async () => {
    const room = aRoom();
    const client = await b.member(room);
    const socket = b.socketOf(client);
    client.socket.on('e', (n: number) => client.socket.emit('got', n));
    socket.on('got', (n: number) => socket.emit('reply', n));
    for (const n of numbers(100)) a.io.to(room).emit('e', n);
    await eventually(() => client.values('reply').length === 100);
    const places = new Map(client.got.map(({ event, args }, index) => [`${event}${args[0]}`, index]));
    for (const n of numbers(100)) expect(places.get(`reply${n}`)).toBeGreaterThan(places.get(`e${n}`) as number);
    expect(client.values('reply')).toEqual(numbers(100));
  });

  test('packets that engine.io has queued go before what is dispatched after them, and behind what was before', async () => {
    const room = aRoom();
    const client = await b.member(room);
    const socket = b.socketOf(client);
    const conn = socket.conn as unknown as { transport: { writable: boolean }; flush(): void; writeBuffer: unknown[] };
    a.io.to(room).emit('e', 'direct');
    await client.receives(['direct']);
    // as while a write is under way: what comes now is queued
    conn.transport.writable = false;
    // a server that recovers connections appends what goes to one socket too: which server is first is seen to, each time
    const emits = [
      () => socket.emit('e', 'queued 1'),
      () => a.io.to(room).emit('e', 'logged 1'),
      () => socket.emit('e', 'queued 2'),
      () => a.io.to(room).emit('e', 'logged 2'),
    ];
    for (const [before, emit] of emits.entries()) {
      emit();
      await eventually(() => conn.writeBuffer.length === before + 1);
    }
    expect(client.values()).toEqual(['direct']);
    conn.transport.writable = true;
    conn.flush();
    await client.receives(['direct', 'queued 1', 'logged 1', 'queued 2', 'logged 2']);
  });

  test('big packets of engine.io that the kernel has not taken stay in front', async () => {
    const room = aRoom();
    const client = await b.member(room);
    const big = 'x'.repeat(100_000);
    const { socket } = client;
    const stream = (socket.io.engine.transport as unknown as { ws: { _socket: { pause(): void; resume(): void } } }).ws
      ._socket;
    stream.pause();
    for (const n of numbers(60)) {
      b.socketOf(client).emit('e', n, big);
      if (n % 6 === 0) a.io.to(room).emit('logged', n);
    }
    await eventually(async () => (await b.metric('log_entries_published_total')) >= 0);
    stream.resume();
    await eventually(() => client.values('logged').length === 10 && client.values().length === 60);
    expect(client.values()).toEqual(numbers(60));
    expect(client.values('logged')).toEqual(numbers(10).map((n) => n * 6));
  });
});
