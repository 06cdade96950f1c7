import { once } from 'node:events';
import { createServer } from 'node:http';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createAdapter } from '../../src/adapter/index.js';
import { encodeMessage } from '../../src/adapter/streams-format.js';
import { silentLogger } from '../../src/core/ports.js';
import { within } from '../../src/core/sleep.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { Deploy, faultsOf, type MixedServer, startDeploy } from './bridge-rig.js';
import { type TestClient, TestServer } from './rig.js';

let redis: RedisProcess;
let direct: Redis;
beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  direct = new Redis(redis.url);
});
afterAll(async () => {
  direct?.disconnect();
  await redis?.stop();
});

test('the ledger sees what is lost, doubled or out of order', () => {
  const right = ['a-1', 'b-1', 'a-2', 'b-2'];
  expect(faultsOf(right, ['a', 'b'], 2)).toEqual([]);
  expect(faultsOf(['a-1', 'b-1', 'a-2'], ['a', 'b'], 2)).toEqual(['b ended at 1 of 2']);
  expect(faultsOf(['a-1', 'a-1', ...right.slice(1)], ['a', 'b'], 2)).toEqual(['a-1 where a-2 was due']);
  expect(faultsOf(['a-2', 'a-1', 'b-1', 'b-2'], ['a', 'b'], 2)).not.toEqual([]);
});

describe('two old and two new servers', () => {
  let deploy: Deploy;
  let servers: MixedServer[];
  beforeAll(async () => {
    // what stood there before is nobody's business
    await direct.xadd('socket.io', '*', ...oldEntry('/', { opts: to([]), packet: event('before') }));
    deploy = new Deploy(redis.url, 'socket.io');
    servers = await startDeploy(deploy);
  });
  afterAll(async () => deploy?.[Symbol.asyncDispose]());

  /** A client on each server. */
  const clientsIn = (rooms: (string | number)[], namespace?: string): Promise<TestClient[]> =>
    Promise.all(servers.map((server, i) => server.client(rooms, { name: `${server.kind}${i}`, namespace })));
  /** An event that all of them get tells that everything before it has come. */
  let drains = 0;
  const drained = async (clients: readonly TestClient[], namespace?: string): Promise<void> => {
    drains++;
    // those of an earlier time have come already, and tell nothing
    const ends = servers.map((_, i) => `end-${drains}-${i}`);
    for (const [i, server] of servers.entries()) await server.does('emit', { value: ends[i], namespace });
    for (const client of clients)
      await eventually(() => ends.every((end) => client.values().includes(end)), {
        withinMs: 8000,
        what: `the last events; got ${JSON.stringify(client.values().slice(-5))}`,
      });
  };
  const withoutEnds = (client: TestClient): unknown[] =>
    client.values().filter((value) => !/^end-/.test(String(value)));

  test('each client gets each event once and in its order, whoever emits, and nothing older than the bridge', async () => {
    const clients = await clientsIn(['all']);
    const names = servers.map((_, i) => `s${i}`);
    await Promise.all(
      servers.map((server, i) => server.does('traffic', { name: names[i], count: 150, everyMs: 2, rooms: ['all'] })),
    );
    await drained(clients);
    for (const client of clients) expect(faultsOf(withoutEnds(client), names, 150)).toEqual([]);
  });

  test('new servers show one order of what both kinds emit', async () => {
    const [, , c, d] = (await clientsIn(['order'])) as [TestClient, TestClient, TestClient, TestClient];
    await Promise.all(
      servers.map((server, i) => server.does('traffic', { name: `o${i}`, count: 40, everyMs: 1, rooms: ['order'] })),
    );
    await drained([c, d]);
    expect(withoutEnds(c)).toHaveLength(160);
    expect(withoutEnds(d)).toEqual(withoutEnds(c));
  });

  test('rooms, except, numbers as rooms and namespaces mean the same on both sides', async () => {
    const inBoth = await clientsIn(['r', 'x']);
    const inOne = await clientsIn(['r']);
    const numbers = await clientsIn([7]);
    const texts = await clientsIn(['7']);
    const elsewhere = await clientsIn(['r'], '/other');
    for (const [i, server] of servers.entries()) {
      await server.does('emit', { rooms: ['r', 'x'], value: `both ${i}` });
      await server.does('emit', { rooms: ['r'], except: ['x'], value: `except ${i}` });
      await server.does('emit', { rooms: [7], value: `number ${i}` });
      await server.does('emit', { namespace: '/other', rooms: ['r'], value: `other ${i}` });
      await drained(inOne);
    }
    await drained([...inBoth, ...inOne, ...numbers, ...texts]);
    await drained(elsewhere, '/other');
    const all = (text: string) => servers.map((_, i) => `${text} ${i}`);
    for (const client of inBoth) expect(withoutEnds(client)).toEqual(all('both'));
    for (const client of inOne)
      expect(withoutEnds(client)).toEqual([0, 1, 2, 3].flatMap((i) => [`both ${i}`, `except ${i}`]));
    for (const client of numbers) expect(withoutEnds(client)).toEqual(all('number'));
    for (const client of texts) expect(withoutEnds(client)).toEqual([]);
    for (const client of elsewhere) expect(withoutEnds(client)).toEqual(all('other'));
  });

  test('binary data arrives as it was', async () => {
    const clients = await clientsIn(['bin']);
    for (const [i, server] of servers.entries())
      await server.does('emit', { rooms: ['bin'], binary: [1, 2, 250 + i], value: i });
    await drained(clients);
    for (const client of clients)
      expect(new Set(withoutEnds(client).map((value) => shown(value)))).toEqual(
        new Set(servers.map((_, i) => `01 02 ${(250 + i).toString(16)} ${i}`)),
      );
  });

  test('joins, leaves and disconnects reach the sockets of the other kind, in their place among the events', async () => {
    for (const server of servers) {
      const clients = await clientsIn(['who']);
      await server.does('join', { rooms: ['who'], join: ['joined', 'more'] });
      await server.does('emit', { rooms: ['joined'], value: 'after the join' });
      await drained(clients);
      for (const client of clients) expect(withoutEnds(client)).toEqual(['after the join']);
      await server.does('leave', { rooms: ['who'], leave: ['joined'] });
      await server.does('emit', { rooms: ['joined'], value: 'after the leave' });
      await drained(clients);
      for (const client of clients) expect(withoutEnds(client)).toEqual(['after the join']);
      await server.does('disconnect', { rooms: ['more'], close: false });
      for (const { socket } of clients) await eventually(() => !socket.connected, { what: 'a disconnect' });
    }
  });

  test('volatile events cross', async () => {
    const clients = await clientsIn(['v']);
    for (const [i, server] of servers.entries()) {
      const values = Array.from({ length: i + 1 }, (_, n) => `v ${n}`);
      await server.does('emit', { rooms: ['v'], volatile: true, value: `v ${i}` });
      // one by one: a volatile event may be dropped while another one is being written
      for (const client of clients) await client.receives(values);
    }
  });

  test('whoever asks for sockets gets those of both kinds', async () => {
    await clientsIn(['fetched']);
    for (const server of servers) {
      const found = await server.does<{ name: string; rooms: string[] }[]>('fetch', { rooms: ['fetched'] });
      expect(found.map(({ name }) => name).sort()).toEqual(['new2', 'new3', 'old0', 'old1']);
      for (const { rooms } of found) expect(rooms).toContain('fetched');
    }
  });

  test('serverSideEmit reaches all others, and waits for exactly them', async () => {
    for (const server of servers) {
      const answers = await server.does<string[]>('ask', { value: 'who' });
      const others = servers.filter((other) => other !== server).map(({ kind }) => `${kind} who`);
      expect(answers.sort()).toEqual(others.sort());
    }
    await servers[0]?.does('tell', { value: 'from old' });
    await servers[2]?.does('tell', { value: 'from new' });
    const heardBy = [['from new'], ['from new', 'from old'], ['from old'], ['from new', 'from old']];
    for (const [i, server] of servers.entries())
      await eventually(async () => expect((await server.does<string[]>('heard')).sort()).toEqual(heardBy[i]), {
        what: 'what was told',
      });
  });

  test('a broadcast with acks gets those of both kinds, and does not wait for more', async () => {
    const clients = await clientsIn(['acks']);
    for (const [i, client] of clients.entries())
      client.socket.on('ack', (value: string, binary: Uint8Array, done: (answer: string) => void) =>
        done(`${value} ${binary[0]} ${i}`),
      );
    for (const server of servers) {
      const startedAt = performance.now();
      const answers = await server.does<string[]>('acks', { rooms: ['acks'], value: 'q', timeoutMs: 5000 });
      expect(answers.sort()).toEqual(['q 7 0', 'q 7 1', 'q 7 2', 'q 7 3']);
      expect(await server.does('acks', { rooms: ['nobody'], value: 'q', timeoutMs: 5000 })).toEqual([]);
      expect(performance.now() - startedAt).toBeLessThan(2500);
    }
  });

  test("an emitter's entries reach everybody, and so does its serverSideEmit", async () => {
    const clients = await clientsIn(['emitted']);
    const before = await Promise.all(servers.map((server) => server.does<string[]>('heard')));
    await direct.xadd('socket.io', '*', ...oldEntry('/', { opts: to(['emitted']), packet: event('from an emitter') }));
    await direct.xadd('socket.io', '*', ...oldEntry('/', { packet: ['question', 'emitted'] }, 9));
    await drained(clients);
    for (const client of clients) expect(withoutEnds(client)).toEqual(['from an emitter']);
    for (const [i, server] of servers.entries())
      await eventually(async () => expect(await server.does('heard')).toEqual([...(before[i] as string[]), 'emitted']));
  });

  test('a client that comes from the other kind begins afresh, and gets what comes', async () => {
    const [old, , fresh] = servers as [MixedServer, MixedServer, MixedServer, MixedServer];
    for (const [from, target] of [
      [old, fresh],
      [fresh, old],
    ] as const) {
      const client = await from.client(['moving']);
      await from.does('emit', { rooms: ['moving'], value: 'one' });
      await client.receives(['one']);
      client.moveTo(target.url);
      client.cut();
      await client.connected(2);
      expect(client.connects).toEqual([false, false]);
      await target.does('emit', { rooms: ['moving'], value: 'two' });
      await client.receives(['one', 'two']);
    }
  });

  test('what makes no sense in the old stream is passed over', async () => {
    const clients = await clientsIn(['sense']);
    const entries = [
      ['a', 'b'],
      oldEntry('/', { opts: to(['sense']) }),
      ['uid', 'x', 'nsp', '/', 'type', '3', 'data', '{"opts":'],
      ['uid', 'x', 'nsp', '/', 'type', '99', 'data', '{}'],
      oldEntry('/', { opts: to(['sense']), packet: event('good') }),
    ];
    for (const entry of entries) await direct.xadd('socket.io', '*', ...entry);
    for (const client of clients.slice(2)) await client.receives(['good']);
  });
});

test('with several old streams each namespace goes by its own, and a key prefix is before all of them', async () => {
  await using deploy = new Deploy(redis.url, undefined, { COUNT: '4', PREFIX: 'app:' });
  const [old, fresh] = await Promise.all([deploy.add('old'), deploy.add('new')]);
  await deploy.gathered();
  // old servers write what is for the last one to a stream that none of them reads
  for (const namespace of ['/', '/other', '/elsewhere']) {
    const [a, b] = [await old.client(['r'], { namespace }), await fresh.client(['r'], { namespace })];
    await old.does('emit', { namespace, rooms: ['r'], value: 'old' });
    await b.receives(['old']);
    await fresh.does('emit', { namespace, rooms: ['r'], value: 'new' });
    for (const client of [a, b]) await client.receives(['old', 'new']);
  }
  const streams = await direct.keys(`*${deploy.oldStream}-*`);
  expect(streams.sort()).toEqual(['--1', '-1', '-3'].map((end) => `app:${deploy.oldStream}${end}`));
});

test('a server on a bridge ends when it is closed, and the next one carries at once', async () => {
  await using deploy = new Deploy(redis.url);
  const [old, first] = await Promise.all([deploy.add('old'), deploy.add('new')]);
  await eventually(() => first.lines.includes('bridge_leads'), { what: 'the lease' });
  const second = await deploy.add('new');
  await deploy.gathered();
  const [a, b] = [await old.client(['r']), await second.client(['r'])];
  expect(await first.ends()).toBe(0);
  await old.does('emit', { rooms: ['r'], value: 'old' });
  await b.receives(['old']);
  await second.does('emit', { rooms: ['r'], value: 'new' });
  await a.receives(['old', 'new']);
  await deploy.gathered([old, second]);
  expect(await second.ends()).toBe(0);
  expect(await direct.keys(`hf:${deploy.log}:{bridge}:lease`)).toEqual([]);
  await deploy.gathered([old]);
});

test('an entry that is too large for the log is counted as failed, and as nothing else', async () => {
  await using deploy = new Deploy(redis.url);
  await using server = await bridged(deploy);
  const client = await server.member('r');
  const binary = Array.from({ length: 1001 }, () => Buffer.from('x'));
  const packet = { type: 2, data: ['e', binary], nsp: '/' };
  const tooLarge = encodeMessage({ opts: to(['r']), packet }).toString('base64');
  await direct.xadd(deploy.oldStream, '*', 'uid', 'emitter', 'nsp', '/', 'type', '3', 'data', tooLarge);
  await direct.xadd(deploy.oldStream, '*', ...oldEntry('/', { opts: to(['r']), packet: event('good') }));
  await client.receives(['good']);
  await eventually(() => server.metric('adapter_bridged_total{direction="in",outcome="carried"}').then((n) => n > 0));
  expect(await server.metric('adapter_bridged_total{direction="in",outcome="carried"}')).toBe(1);
  expect(await server.metric('adapter_bridged_total{direction="in",outcome="failed"}')).toBe(1);
});

test('a question to an old server that hangs ends when the server that asked is closed', async () => {
  await using deploy = new Deploy(redis.url);
  await using server = await bridged(deploy);
  const old = await deploy.add('old');
  await eventually(async () => (await server.io.of('/').adapter.serverCount()) === 2, { what: 'the old server' });
  old.pause();
  const ear = direct.duplicate();
  await ear.subscribe(`${deploy.oldStream}#/#`);
  const isAsked = once(ear, 'message');
  const asked = server.io.timeout(60_000).fetchSockets();
  const ends = expect(within(8000, asked)).rejects.toThrow('shutting down');
  await isAsked;
  await server.stop();
  await ends;
  ear.disconnect();
});

test('a server on a bridge without Redis emits, asks and closes', async () => {
  const adapter = createAdapter(new Redis('redis://127.0.0.1:1', { lazyConnect: true }), {
    bridge: 'socket.io',
    logger: silentLogger,
  });
  const io = new Server(createServer(), { adapter });
  io.emit('e', 1);
  io.volatile.emit('e', 2);
  io.serverSideEmit('question', 3);
  await expect(io.fetchSockets()).rejects.toThrow('not open');
  await io.close();
});

test('without the option nothing is written to the old stream, nor read from it', async () => {
  await using deploy = new Deploy(redis.url);
  const [old, fresh] = await Promise.all([deploy.add('old'), deploy.add('new', { BRIDGED: '0' })]);
  const [a, b] = [await old.client(['r']), await fresh.client(['r'])];
  await old.does('emit', { rooms: ['r'], value: 'old' });
  await a.receives(['old']);
  const before = await direct.xlen(deploy.oldStream);
  await fresh.does('emit', { rooms: ['r'], value: 'new' });
  await fresh.does('emit', { rooms: ['r'], value: 'new', volatile: true });
  await eventually(() => b.values().length === 2, { what: 'both events' });
  expect(await direct.xlen(deploy.oldStream)).toBe(before);
  expect(b.values()).toEqual(['new', 'new']);
  expect(a.values()).toEqual(['old']);
  expect(await direct.keys(`hf:${deploy.log}:{bridge}*`)).toEqual([]);
});

/** A new server in this process. */
async function bridged({ oldStream, log }: Deploy): Promise<TestServer> {
  const bridge = { streamName: oldStream, channelPrefix: oldStream };
  const server = new TestServer(redis.url, { options: { streamName: log, bridge } });
  await server.listen();
  await eventually(() => server.logs.some(({ event }) => event === 'bridge_leads'), {
    withinMs: 10_000,
    what: 'the lease',
  });
  return server;
}

function oldEntry(nsp: string, data: object, type = 3): string[] {
  return ['uid', 'emitter', 'nsp', nsp, 'type', String(type), 'data', JSON.stringify(data)];
}

function to(rooms: readonly string[]): object {
  return { rooms, except: [], flags: {} };
}

function event(value: unknown): object {
  return { type: 2, data: ['e', value], nsp: '/' };
}

function shown(value: unknown): string {
  const { deep } = value as { deep: [Uint8Array, number] };
  return `${[...deep[0]].map((byte) => byte.toString(16).padStart(2, '0')).join(' ')} ${deep[1]}`;
}
