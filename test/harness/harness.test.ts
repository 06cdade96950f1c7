import { once } from 'node:events';
import { createServer as createHttpServer, type Server } from 'node:http';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { Redis } from 'ioredis';
import { jwtVerify } from 'jose';
import { Server as SocketServer } from 'socket.io';
import { describe, expect, test } from 'vitest';
import { binary } from './binaries.js';
import { connect as connectClient, open, outcomeOf } from './client.js';
import { freePort } from './free-port.js';
import { startHaproxy } from './haproxy.js';
import { parseMetrics } from './pod.js';
import { eventually } from './poll.js';
import { promtoolCheck, startPrometheus } from './prometheus.js';
import { startRedis } from './redis.js';
import { startTcpProxy } from './tcp-proxy.js';
import { TEST_JWT_SECRET, token } from './token.js';

async function withRedis<T>(url: string, work: (redis: Redis) => Promise<T>): Promise<T> {
  const redis = new Redis(url, { lazyConnect: true, retryStrategy: null });
  redis.on('error', () => {});
  try {
    await redis.connect();
    return await work(redis);
  } finally {
    redis.disconnect();
  }
}

describe('eventually', () => {
  test('passes on the first try that neither throws nor is false', async () => {
    let tries = 0;
    await eventually(() => ++tries === 3);
    await eventually(() => expect(++tries).toBe(6));
    expect(tries).toBe(6);
  });

  test('tells what it waited for and the last failure', async () => {
    const failing = eventually(() => expect(1).toBe(2), { withinMs: 60, what: 'the moon' });
    await expect(failing).rejects.toThrow(/60 ms waiting for the moon; last: expected 1 to be 2/);
  });

  test('a try that hangs ends with the deadline', async () => {
    await expect(eventually(() => new Promise<void>(() => {}), { withinMs: 60 })).rejects.toThrow('60 ms');
  });
});

test('a free port is never given twice, and lies below the ephemeral range', async () => {
  const ports = await Promise.all(Array.from({ length: 50 }, freePort));
  expect(new Set(ports).size).toBe(50);
  expect(Math.max(...ports)).toBeLessThan(32_768);
});

test('a program is looked for once', async () => {
  const [first, second] = await Promise.all([binary('redis-server'), binary('redis-server')]);
  expect(second).toBe(first);
});

describe('redis', () => {
  test('a kill and a restart keep what the AOF holds, on the same port', async () => {
    await using redis = await startRedis();
    await withRedis(redis.url, (client) => client.set('kept', 'yes'));
    const pid = redis.pid;
    await redis.kill();
    await expect(withRedis(redis.url, (client) => client.ping())).rejects.toThrow();
    await redis.start();
    expect(redis.pid).not.toBe(pid);
    expect(await withRedis(redis.url, (client) => client.get('kept'))).toBe('yes');
  });

  test('a pause answers nothing and a resume answers what waited', async () => {
    await using redis = await startRedis({ aof: 'off', config: { 'maxmemory-policy': 'noeviction' } });
    await withRedis(redis.url, async (client) => {
      redis.pause();
      let isAnswered = false;
      const ping = client.ping().then(() => {
        isAnswered = true;
      });
      await expect(eventually(() => isAnswered, { withinMs: 150 })).rejects.toThrow();
      redis.resume();
      await ping;
    });
  });
});

/** Answers each line with `echo <line>`, and keeps what it got. */
async function echoServer() {
  const seen: string[] = [];
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
    socket.on('error', () => {});
    socket.on('data', (data) => {
      seen.push(data.toString());
      socket.write(`echo ${data}`);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const stop = async (): Promise<void> => {
    for (const socket of sockets) socket.destroy();
    server.close();
  };
  return { seen, sockets, port: (server.address() as AddressInfo).port, [Symbol.asyncDispose]: stop };
}

async function dial(port: number) {
  const socket = connect(port, '127.0.0.1');
  const state = { replies: '', error: '', isClosed: false };
  socket.on('data', (data) => {
    state.replies += data.toString();
  });
  socket.on('error', (error) => {
    state.error = (error as NodeJS.ErrnoException).code ?? 'error';
  });
  socket.on('close', () => {
    state.isClosed = true;
  });
  await new Promise((resolve) => socket.once('connect', resolve).once('close', resolve));
  return { socket, state, [Symbol.asyncDispose]: async () => void socket.destroy() };
}

const QUIET_MS = 120;

async function staysTrue(holds: () => boolean): Promise<void> {
  await expect(eventually(() => !holds(), { withinMs: QUIET_MS })).rejects.toThrow();
}

describe('tcp proxy', () => {
  test('without a fault it passes bytes and ends both ways', async () => {
    await using server = await echoServer();
    await using proxy = await startTcpProxy(server.port);
    await using client = await dial(proxy.port);
    client.socket.end('hello');
    await eventually(() => client.state.isClosed);
    expect(client.state).toEqual({ replies: 'echo hello', error: '', isClosed: true });
    await eventually(() => server.sockets.size === 0 && proxy.connections === 0);
  });

  test('large replies come whole', async () => {
    const size = 20_000_000;
    const source = createServer((socket) => socket.on('error', () => {}).end(Buffer.alloc(size)));
    source.listen(0, '127.0.0.1');
    await once(source, 'listening');
    await using proxy = await startTcpProxy((source.address() as AddressInfo).port);
    const socket = connect(proxy.port, '127.0.0.1');
    let got = 0;
    for await (const chunk of socket) got += (chunk as Buffer).length;
    expect(got).toBe(size);
    source.close();
  });

  test('rst resets both sides', async () => {
    await using server = await echoServer();
    await using proxy = await startTcpProxy(server.port);
    await using client = await dial(proxy.port);
    await eventually(() => server.sockets.size === 1);
    expect(proxy.rst()).toBe(1);
    await eventually(() => client.state.error === 'ECONNRESET' && server.sockets.size === 0);
  });

  test('a black hole passes nothing, hides a death, and delivers late when it is lifted', async () => {
    await using server = await echoServer();
    await using proxy = await startTcpProxy(server.port);
    await using client = await dial(proxy.port);
    await using dying = await dial(proxy.port);
    await eventually(() => server.sockets.size === 2);
    proxy.blackhole(true);
    await using late = await dial(proxy.port);
    client.socket.write('a');
    late.socket.write('b');
    dying.socket.resetAndDestroy();
    await staysTrue(() => server.seen.length === 0 && server.sockets.size >= 2 && client.state.replies === '');
    proxy.blackhole(false);
    await eventually(() => client.state.replies === 'echo a' && late.state.replies === 'echo b');
    await eventually(() => server.sockets.size === 2);
  });

  test('dropped replies are lost for good, requests pass', async () => {
    await using server = await echoServer();
    await using proxy = await startTcpProxy(server.port);
    await using client = await dial(proxy.port);
    proxy.dropReplies(true);
    client.socket.write('a');
    await eventually(() => server.seen.length === 1);
    await staysTrue(() => client.state.replies === '');
    proxy.dropReplies(false);
    client.socket.write('b');
    await eventually(() => client.state.replies !== '');
    expect(client.state.replies).toBe('echo b');
  });

  test('held requests wait, replies pass', async () => {
    await using server = await echoServer();
    await using proxy = await startTcpProxy(server.port);
    await using client = await dial(proxy.port);
    await eventually(() => server.sockets.size === 1);
    proxy.holdRequests(true);
    client.socket.write('a');
    for (const socket of server.sockets) socket.write('pushed ');
    await eventually(() => client.state.replies === 'pushed ');
    await staysTrue(() => server.seen.length === 0);
    proxy.holdRequests(false);
    await eventually(() => client.state.replies === 'pushed echo a');
  });

  test('refuses new connections and keeps the open ones', async () => {
    await using server = await echoServer();
    await using proxy = await startTcpProxy(server.port);
    await using client = await dial(proxy.port);
    await eventually(() => server.sockets.size === 1);
    await proxy.refuse(true);
    await using refused = await dial(proxy.port);
    expect(refused.state.error).toBe('ECONNREFUSED');
    client.socket.write('a');
    await eventually(() => client.state.replies === 'echo a');
    await proxy.refuse(false);
    await using again = await dial(proxy.port);
    expect(again.state.error).toBe('');
  });

  test('a delay holds each direction, in order', async () => {
    await using server = await echoServer();
    await using proxy = await startTcpProxy(server.port);
    await using client = await dial(proxy.port);
    proxy.delay(60);
    const sentAt = performance.now();
    client.socket.write('a');
    await eventually(() => client.state.replies === 'echo a');
    expect(performance.now() - sentAt).toBeGreaterThanOrEqual(119);
    for (const letter of 'bcd') client.socket.write(letter);
    await eventually(() => client.state.replies.endsWith('d'));
    expect(server.seen.join('')).toBe('abcd');
  });

  test('with nobody behind it, a connection is reset', async () => {
    await using proxy = await startTcpProxy(await freePort());
    await using client = await dial(proxy.port);
    await eventually(() => client.state.isClosed);
    expect(client.state.error).toBe('ECONNRESET');
  });
});

/** Says its name, and `ready` on every path that haproxy may ask. */
async function namedServer(name: string) {
  const server: Server = createHttpServer((request, response) => {
    if (request.url === '/metrics')
      response.end(`# HELP up_here It is.\n# TYPE up_here gauge\nup_here{pod="${name}"} 1\n`);
    else response.end(name);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const port = (server.address() as AddressInfo).port;
  const stop = async (): Promise<void> => {
    server.closeAllConnections();
    server.close();
  };
  return { name, backend: { host: '127.0.0.1', port, opsPort: port }, stop, [Symbol.asyncDispose]: stop };
}

test('haproxy spreads requests over what is up and takes a dead one out', async () => {
  await using first = await namedServer('first');
  await using second = await namedServer('second');
  await using balancer = await startHaproxy({ backends: [first.backend, second.backend] });
  await eventually(async () => expect(await balancer.up()).toEqual([true, true]));
  const names = async (): Promise<string[]> =>
    Promise.all(Array.from({ length: 10 }, async () => (await fetch(balancer.url)).text()));
  expect(new Set(await names())).toEqual(new Set(['first', 'second']));
  await first.stop();
  await eventually(async () => expect(await balancer.up()).toEqual([false, true]));
  expect(new Set(await names())).toEqual(new Set(['second']));
});

test('prometheus scrapes its targets and answers queries', async () => {
  await using server = await namedServer('pod-0');
  await using prometheus = await startPrometheus({ targets: [`127.0.0.1:${server.backend.port}`], scrapeMs: 100 });
  await eventually(async () => expect((await prometheus.query('up_here'))[0]?.metric.pod).toBe('pod-0'));
  expect(await prometheus.query('sum(up_here) + 1')).toMatchObject([{ value: 2 }]);
  expect(await prometheus.query('scalar(sum(up))')).toMatchObject([{ value: 1 }]);
  await expect(prometheus.query('sum(')).rejects.toThrow('parse error');
}, 40_000);

test('promtool tells good metrics from bad ones', async () => {
  expect(await promtoolCheck('# HELP a_total Some.\n# TYPE a_total counter\na_total 1\n')).toEqual({
    ok: true,
    errors: [],
  });
  const { ok, errors } = await promtoolCheck('# HELP a Some.\n# TYPE a counter\na 1\n');
  expect(ok).toBe(false);
  expect(errors.join()).toContain('_total');
});

test('metrics are read as series and value', () => {
  const text = '# TYPE a gauge\na{x="1 {} 2",y="b"} 3\nb 1e-3 1700000000\nc_bucket{le="+Inf"} +Inf\nd NaN\n';
  expect([...parseMetrics(text)]).toEqual([
    ['a{x="1 {} 2",y="b"}', 3],
    ['b', 0.001],
    ['c_bucket{le="+Inf"}', Number.POSITIVE_INFINITY],
    ['d', Number.NaN],
  ]);
});

test('a token holds what was asked for, under the test secret', async () => {
  const key = new TextEncoder().encode(TEST_JWT_SECRET);
  const { payload } = await jwtVerify(await token({ sub: 'u', tenant: 't', device: 'd', caps: { publish: [] } }), key);
  expect(payload).toMatchObject({ sub: 'u', tenant: 't', device: 'd', caps: { publish: [] } });
  await expect(jwtVerify(await token({ sub: 'u', ttlSeconds: -10 }), key)).rejects.toThrow('exp');
});

/** A stock Socket.IO server that says what the relay would say. */
async function socketServer({ recovers = false } = {}) {
  const http = createHttpServer();
  const sockets = new SocketServer(http, { ...(recovers && { connectionStateRecovery: {} }), serveClient: false });
  sockets.use((socket, next) => next(socket.handshake.auth.token === 'good' ? undefined : new Error('no')));
  sockets.on('connection', (socket) => {
    socket.on('subscribe', ({ room }, ack) => {
      socket.emit('said', 'hello', { room, id: 'm1', at: 1 }, 'e1:0:1-1');
      socket.emit('typing', 'hello', { room, id: 'm2', at: 1 });
      socket.emit('holdfast:position', 'e1:0:1-1');
      socket.emit('holdfast:gap', { partition: 0, from: 1, to: 2, reason: 'trimmed' });
      socket.emit('presence', { user: 'u', online: true, at: 1 });
      ack({ ok: true, position: 'e1:0:0-0', recovered: false });
    });
    socket.on('publish', ({ room }, ack) => room !== 'silent' && ack(JSON.parse(room)));
  });
  http.listen(0, '127.0.0.1');
  await once(http, 'listening');
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  return { url, [Symbol.asyncDispose]: async () => void (await sockets.close()) };
}

describe('client', () => {
  test('keeps what it sees, by kind, and its account for the ledger', async () => {
    await using server = await socketServer();
    await using client = await connectClient(server.url, { token: 'good' });
    await client.subscribe('r');
    expect(client.received).toMatchObject([
      { event: 'said', data: 'hello', meta: { room: 'r', id: 'm1' }, position: 'e1:0:1-1' },
      { event: 'typing', position: undefined },
    ]);
    expect([client.positions, client.gaps.length, client.control.map(({ event }) => event)]).toEqual([
      ['e1:0:1-1'],
      1,
      ['presence'],
    ]);
    expect(client.account('c')).toMatchObject({
      name: 'c',
      subscriptions: [{ room: 'r', position: 'e1:0:0-0' }],
      gaps: [{ to: 2 }],
    });
  });

  test('comes back after a cut, and tells whether it was recovered', async () => {
    await using server = await socketServer({ recovers: true });
    await using client = await connectClient(server.url, { token: 'good' });
    await client.subscribe('r');
    client.cut();
    await eventually(() => client.connects.length === 2);
    expect(client.disconnects).toHaveLength(1);
    expect(client.connects.map(({ recovered }) => recovered)).toEqual([false, true]);
  });

  test('tells why it was refused', async () => {
    await using server = await socketServer();
    await using client = open(server.url, { token: 'bad' });
    await expect(client.connected()).rejects.toThrow('refused: no');
  });

  test('publishing ends as accepted, refused or unknown', async () => {
    await using server = await socketServer();
    await using client = await connectClient(server.url, { token: 'good', ackMs: 100 });
    const outcomes = [
      '{"ok":true,"position":"e1:0:1-1"}',
      '{"ok":false}',
      '{"ok":false,"mayHaveHappened":true}',
      'silent',
    ];
    const ends = outcomes.map((room) => outcomeOf(client.publish({ room, event: 'e' })));
    expect((await Promise.all(ends)).map(({ kind }) => kind)).toEqual(['accepted', 'refused', 'unknown', 'unknown']);
  });
});
