import { io } from 'socket.io-client';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { publish, type Stack, startStack } from '../gateway/fixture.js';
import { eventually } from '../harness/poll.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { collect, live, numbers, open, someone } from './fixture.js';

let stack: Stack;

beforeAll(async () => {
  stack = await startStack(1);
});
afterAll(() => stack?.stop());

test('cuts in the middle of the handshake, wherever they fall, leave a client connected in the end', async () => {
  const room = someone('room');
  await using proxy = await startTcpProxy(stack.pod(0).port);
  // slow enough that each step of the handshake is there to be cut
  proxy.delay(4);
  const { client, resyncs } = open(`http://127.0.0.1:${proxy.port}`, {
    connectTimeoutMs: 2000,
    reconnectDelayMaxMs: 100,
  });
  await using _ = client;
  const got = collect(client, room);
  await client.live();
  let cuts = 0;
  for (const waitMs of numbers(0, 9).map((n) => n * 5)) {
    cuts += proxy.rst();
    await eventually(() => proxy.connections > 0, { withinMs: 25_000 });
    await sleep(waitMs);
    cuts += proxy.rst();
    // its back-off begins anew, so that the next cut comes soon
    await live(client);
  }
  expect(cuts).toBeGreaterThanOrEqual(10);
  await publish(stack.pod(0), room, ['still here']);
  await eventually(() => got.data().includes('still here'));
  expect(resyncs).toEqual(['new']);
});

test('an engine that dies unseen in the handshake is noticed at once; the stock client waits for it', async () => {
  await using proxy = await startTcpProxy(stack.pod(0).port);
  const url = `http://127.0.0.1:${proxy.port}`;
  proxy.blackhole(true);

  const stock = io(url, {
    transports: ['websocket'],
    forceNew: true,
    reconnectionDelay: 1,
    auth: { token: await token({ sub: 'u' }) },
  });
  const { client } = open(url);
  await using _ = client;
  const isOpening = (socket: typeof stock): boolean =>
    (socket.io as unknown as { _readyState: string })._readyState === 'opening' && socket.io.engine !== undefined;
  await eventually(() => isOpening(stock) && isOpening(client.socket) && proxy.connections === 2);
  for (const { io } of [stock, client.socket]) io.engine.close();
  proxy.blackhole(false);
  proxy.rst();
  await live(client);
  // the control: without a watchdog nothing has happened since
  expect(isOpening(stock)).toBe(true);
  expect(stock.io.engine.readyState).toBe('closed');
  stock.disconnect();
});

test('a publish that waits outlasts a connection that opens and is lost before the relay has answered', async () => {
  const { client } = open(stack.pod(0).url);
  await using _ = client;
  let [lost, connects] = [0, 0];
  client.socket.on('disconnect', () => lost++);
  client.socket.on('connect', () => connects++);
  // later, as a manager hears of its engine's end only after its own `open`
  client.socket.io.once('open', () => queueMicrotask(() => client.socket.io.engine.close()));
  const { position } = await client.publish(someone('room'), 'e', 1, { timeoutMs: 10_000 });
  expect(position).toBeDefined();
  expect({ lost, connects }).toEqual({ lost: 1, connects: 1 });
});

test('a handshake that nobody answers is given up and begun anew', async () => {
  await using proxy = await startTcpProxy(stack.pod(0).port);
  proxy.dropReplies(true);
  const { client } = open(`http://127.0.0.1:${proxy.port}`, { connectTimeoutMs: 300 });
  await using _ = client;
  const errors: string[] = [];
  client.on('status', (status) => status.state === 'connecting' && errors.push(status.error?.message ?? ''));
  await eventually(() => errors.length > 0);
  expect(errors[0]).toBe('connecting took too long');
  proxy.dropReplies(false);
  await live(client);
});

test('a token that never comes is given up and asked for anew', async () => {
  const sub = someone();
  let asked = 0;
  const { client } = open(stack.pod(0).url, {
    token: () => (asked++ === 0 ? new Promise<string>(() => {}) : token({ sub, caps: ALL_CAPS })),
    connectTimeoutMs: 200,
  });
  await using _ = client;
  await live(client);
  expect(asked).toBe(2);
});

test('a disconnect by the server, which ends a stock client, is followed by a reconnect', async () => {
  const { client, states } = open(stack.pod(0).url);
  await using _ = client;
  await client.live();
  // as socket.disconnect() on a server is received
  (client.socket as unknown as { ondisconnect(): void }).ondisconnect();
  await eventually(() => states.length === 3);
  expect(states).toEqual(['live', 'connecting', 'live']);
});

test('a closing that says not to come back closes the client with its code', async () => {
  const { client } = open(stack.pod(0).url);
  await client.live();
  (client.socket as unknown as { emitEvent(args: unknown[]): void }).emitEvent([
    'holdfast:closing',
    { code: 'session_replaced', reason: 'taken over', reconnect: false },
  ]);
  await eventually(() => client.status.state === 'closed');
  expect(client.status).toMatchObject({ error: { code: 'session_replaced', message: 'taken over' } });
});
