import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Redis } from 'ioredis';
import { Server } from 'socket.io';
import { io as connect, type Socket } from 'socket.io-client';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type AttachRpcOptions, attachRpc, createRpcClient } from '../../src/attach/index.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';

let redis: RedisProcess;
let shared: Redis;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  shared = new Redis(redis.url);
});

afterAll(async () => {
  shared?.disconnect();
  await redis?.stop();
});

const byAuth: AttachRpcOptions['identify'] = ({ handshake }) => ({ user: String(handshake.auth.user) });

async function startApp(identify = byAuth) {
  const http = createServer();
  const io = new Server(http, { connectionStateRecovery: {} });
  const rpc = attachRpc(io, shared, { identify });
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  const stop = async (): Promise<void> => {
    await rpc.close(0);
    await io.close();
  };
  return { url, io, rpc, [Symbol.asyncDispose]: stop };
}

const open = (url: string, user: string): Socket =>
  connect(url, { auth: { user }, forceNew: true, transports: ['websocket'], reconnectionDelay: 50 });

test('what comes before a socket is known is bounded by number and by bytes', async () => {
  let know: () => void = () => {};
  const known = new Promise<void>((resolve) => {
    know = resolve;
  });
  await using app = await startApp(async (socket) => {
    await known;
    return byAuth(socket);
  });
  const many = open(app.url, 'ann');
  const answers: { code?: string }[] = [];
  for (let n = 0; n < 150; n++)
    many.emit('rpc-call', { method: 'm', params: n }, (answer: object) => answers.push(answer));
  await eventually(() => expect(answers.map(({ code }) => code)).toEqual(Array(50).fill('too_many_requests')));
  const large = open(app.url, 'bob');
  const refused: { code?: string }[] = [];
  for (let n = 0; n < 5; n++)
    large.emit('rpc-call', { method: 'm', params: [Buffer.alloc(600_000)] }, (answer: object) => refused.push(answer));
  await eventually(() => expect(refused.map(({ code }) => code)).toEqual(Array(2).fill('too_many_requests')));
  know();
  await eventually(() => expect([answers.length, refused.length]).toEqual([150, 5]));
  expect(answers.slice(50).map(({ code }) => code)).toEqual(Array(100).fill('no_worker'));
  for (const socket of [many, large]) socket.disconnect();
});

test('a socket that nobody can name is unauthorized after 10 s', async () => {
  await using app = await startApp(() => new Promise(() => {}));
  const socket = open(app.url, 'ann');
  const answer = await socket.timeout(15_000).emitWithAck('rpc-call', { method: 'm' });
  expect(answer).toMatchObject({ ok: false, code: 'unauthorized' });
  socket.disconnect();
});

test('a server that closes says so, also to who connects then, and ends what is in work', async () => {
  await using app = await startApp();
  await using client = createRpcClient(shared);
  const daemon = open(app.url, 'ann');
  let finish: () => void = () => {};
  daemon.on('rpc-request', (_request, ack) => {
    finish = () => ack('done');
  });
  expect(await daemon.emitWithAck('rpc-register', { method: 'slow' })).toEqual({ ok: true });
  const begun = finish;
  const calling = client.call('ann', 'slow');
  await eventually(() => finish !== begun);
  const closing = app.rpc.close(20_000);
  const late = open(app.url, 'ann');
  for (const socket of [daemon, late])
    for (const command of ['rpc-register', 'rpc-call'])
      expect(await socket.timeout(3000).emitWithAck(command, { method: 'other' })).toMatchObject({
        ok: false,
        code: 'shutting_down',
        retryable: true,
      });
  finish();
  expect(await calling).toBe('done');
  await closing;
  for (const socket of [daemon, late]) socket.disconnect();
});

test.each([
  ['the same user', 'alice', 'mine'],
  ['another user', 'bob', undefined],
])('a recovered socket of %s has its methods as far as they are its own', async (_, user, result) => {
  await using app = await startApp();
  await using client = createRpcClient(shared);
  const daemon = open(app.url, 'alice');
  daemon.on('rpc-request', (_request, ack) => ack('mine'));
  await daemon.emitWithAck('rpc-register', { method: 'secrets' });
  // an offset to recover from
  app.io.emit('hello');
  await new Promise((resolve) => daemon.once('hello', resolve));
  daemon.auth = { user };
  const back = new Promise((resolve) => daemon.once('connect', () => resolve(daemon.recovered)));
  daemon.io.engine.close();
  expect(await back).toBe(true);
  const mine = () => client.call(user, 'secrets', null, { waitForWorkerMs: 0 }).catch(() => undefined);
  if (result) await eventually(async () => (await mine()) === result);
  else {
    // whatever it takes up, it takes up before that
    expect(await daemon.emitWithAck('rpc-register', { method: 'other' })).toEqual({ ok: true });
    expect((await client.methods(user)).map(({ method }) => method)).toEqual(['other']);
  }
  daemon.disconnect();
});

test('a pattern of namespaces is refused in one line', () => {
  const io = new Server();
  expect(() => attachRpc(io.of(/^\/x/), shared, { identify: byAuth })).toThrow(TypeError);
  expect(() => attachRpc(io.of(/^\/x/), shared, { identify: byAuth })).toThrow(/^attachRpc: io: wants/);
  expect(() => attachRpc(io, shared, { identify: byAuth, name: '' })).toThrow(/^attachRpc: name: wants/);
});
