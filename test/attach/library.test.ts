import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Redis } from 'ioredis';
import { Registry } from 'prom-client';
import { Server } from 'socket.io';
import { io as connect, type Socket } from 'socket.io-client';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { attachRpc, CallError, createRpcClient, createRpcWorker, type RpcClient } from '../../src/attach/index.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';

let redis: RedisProcess;
let shared: Redis;
let client: RpcClient;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  shared = new Redis(redis.url);
  client = createRpcClient(shared);
});

afterAll(async () => {
  await client?.close();
  shared?.disconnect();
  await redis?.[Symbol.asyncDispose]();
});

async function startApp(): Promise<{ url: string; stop: () => Promise<void>; io: Server }> {
  const http = createServer();
  const io = new Server(http);
  const rpc = attachRpc(io, shared, {
    identify: ({ handshake }) => (handshake.auth.user ? { user: String(handshake.auth.user) } : undefined),
  });
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  const stop = async (): Promise<void> => {
    await rpc.close(0);
    await io.close();
  };
  return { url, stop, io };
}

const open = (url: string, user?: string): Socket => connect(url, { auth: { user }, forceNew: true });

describe('a worker', () => {
  it('serves a client of another process, and says what it serves', async () => {
    await using worker = createRpcWorker(shared, {
      user: 'billing',
      methods: { add: ({ a, b }) => a + b, slow: () => new Promise(() => {}) },
    });
    await worker.ready;
    expect(await client.call('billing', 'add', { a: 1, b: 2 })).toBe(3);
    expect(await client.methods('billing')).toMatchObject([
      { method: 'add', state: 'live' },
      { method: 'slow', state: 'live' },
    ]);
  });

  it.each([
    ['text', 'hello'],
    ['null', null],
    ['nothing', undefined, null],
    ['bytes', Buffer.from([0, 1, 255])],
    ['bytes within', { file: Buffer.from('x'), size: 1 }],
    ['a text that looks packed', '\u0000msgpack:zzz'],
    ['unicode', { '💥': '\u2028 "quoted" \\' }],
  ])('gets %s and gives it back as it was', async (_, value, back = value) => {
    await using worker = createRpcWorker(shared, { user: 'mirror', methods: { same: (params) => params } });
    await worker.ready;
    expect(await client.call('mirror', 'same', value)).toEqual(back);
  });

  it('that fails tells its text', async () => {
    await using worker = createRpcWorker(shared, {
      user: 'failing',
      methods: {
        now: () => {
          throw new Error('not today');
        },
        later: () => Promise.reject(new Error('nor tomorrow')),
        circular: () => {
          const loop: Record<string, unknown> = {};
          loop.loop = loop;
          return loop;
        },
        large: () => 'x'.repeat(2_000_000),
        bare: () => Promise.reject(Object.create(null)),
        odd: () => Promise.reject(Object.assign(new Error(), { message: { not: 'text' } })),
        mean: () =>
          Promise.reject(
            Object.defineProperty(new Error(), 'message', {
              get: () => {
                throw new Error('no message');
              },
            }),
          ),
      },
    });
    await worker.ready;
    const failure = (method: string) => client.call('failing', method).catch((error: CallError) => error);
    expect(await failure('now')).toMatchObject({ code: 'handler_error', message: 'not today', mayHaveRun: true });
    expect(await failure('later')).toMatchObject({ code: 'handler_error', message: 'nor tomorrow' });
    expect(await failure('circular')).toMatchObject({ code: 'handler_error' });
    expect(await failure('large')).toMatchObject({ code: 'payload_too_large', mayHaveRun: true });
    for (const method of ['bare', 'odd', 'mean'])
      expect(await failure(method)).toMatchObject({ code: 'handler_error', message: 'the handler failed' });
    expect(await failure('now')).toBeInstanceOf(CallError);
  });

  it('that closes finishes what it has, and is gone at once for what comes then', async () => {
    const worker = createRpcWorker(shared, {
      user: 'leaving',
      methods: { slow: () => new Promise((resolve) => setTimeout(resolve, 400, 'done')) },
    });
    await worker.ready;
    const slow = client.call('leaving', 'slow');
    await eventually(async () => (await shared.llen('hf:rpc:{default/leaving}:slow:active')) === 1);
    const closing = worker.close();
    expect(await slow).toBe('done');
    await closing;
    await expect(client.call('leaving', 'slow')).rejects.toMatchObject({ code: 'no_worker', mayHaveRun: false });
  });

  it('hears that its caller gave up', async () => {
    const reasons: unknown[] = [];
    await using worker = createRpcWorker(shared, {
      user: 'patient',
      methods: {
        wait: (_params, { signal }) =>
          new Promise((resolve) => {
            signal.addEventListener('abort', () => {
              reasons.push(signal.reason.code);
              resolve('late');
            });
          }),
      },
    });
    await worker.ready;
    const giveUp = new AbortController();
    const calling = client.call('patient', 'wait', null, { signal: giveUp.signal });
    await eventually(async () => (await shared.llen('hf:rpc:{default/patient}:wait:active')) === 1);
    giveUp.abort();
    await expect(calling).rejects.toMatchObject({ code: 'cancelled', mayHaveRun: true });
    await expect(client.call('patient', 'wait', null, { timeoutMs: 300 })).rejects.toMatchObject({
      code: 'timeout',
      mayHaveRun: true,
    });
    await eventually(() => expect(reasons).toEqual(['cancelled', 'timeout']));
  });
});

describe('an abort', () => {
  it('before the call is its outcome', async () => {
    const call = client.call('nobody', 'at-all', null, { signal: AbortSignal.abort() });
    await expect(call).rejects.toBeInstanceOf(CallError);
    await expect(call).rejects.toMatchObject({ code: 'cancelled', mayHaveRun: false });
  });

  it('while its process starts ends it, and nothing runs', async () => {
    const ran: unknown[] = [];
    await using worker = createRpcWorker(shared, { user: 'early', methods: { run: (params) => ran.push(params) } });
    await worker.ready;
    await using starting = createRpcClient(shared);
    const giveUp = new AbortController();
    const call = starting.call('early', 'run', 'aborted', { signal: giveUp.signal });
    giveUp.abort();
    await expect(call).rejects.toMatchObject({ code: 'cancelled', mayHaveRun: false });
    await starting.call('early', 'run', 'kept');
    expect(ran).toEqual(['kept']);
  });

  it('while Redis stands still ends it at once, and its handler is told when Redis is back', async () => {
    const reasons: unknown[] = [];
    await using worker = createRpcWorker(shared, {
      user: 'still',
      methods: {
        wait: (_params, { signal }) =>
          new Promise((resolve) => {
            signal.addEventListener('abort', () => {
              reasons.push(signal.reason.code);
              resolve(null);
            });
          }),
      },
    });
    await worker.ready;
    const giveUp = new AbortController();
    const calling = client.call('still', 'wait', null, { signal: giveUp.signal, timeoutMs: 60_000 });
    // Redis has heard from the worker that it has begun
    await eventually(async () => {
      const [call = ''] = await shared.keys('hf:rpc:{default/still}:@call:*');
      return (await shared.hget(call, 'begun')) === '1';
    });
    const pausedAt = performance.now();
    redis.pause();
    giveUp.abort();
    try {
      await expect(calling).rejects.toMatchObject({ code: 'cancelled', mayHaveRun: true });
      expect(performance.now() - pausedAt).toBeLessThan(1500);
      // longer than one try to cancel
      await new Promise((resolve) => setTimeout(resolve, 2500 - (performance.now() - pausedAt)));
    } finally {
      redis.resume();
    }
    await eventually(() => expect(reasons).toEqual(['cancelled']), { withinMs: 10_000 });
  });
});

describe('what it takes to connect', () => {
  it("is part of a call's time", async () => {
    const nowhere = new Redis({ port: 1, lazyConnect: true });
    await using far = createRpcClient(nowhere);
    const startedAt = performance.now();
    await expect(far.call('u', 'm', null, { timeoutMs: 300 })).rejects.toMatchObject({
      code: 'timeout',
      mayHaveRun: false,
    });
    expect(performance.now() - startedAt).toBeLessThan(1500);
  });
});

describe('calls on a stock server', () => {
  it('cross servers that know nothing of each other, from the tick of connect on', async () => {
    const [a, b] = await Promise.all([startApp(), startApp()]);
    const daemon = open(a.url, 'ann');
    daemon.on('rpc-request', ({ params }, ack) => ack({ got: params }));
    const registered = daemon.emitWithAck('rpc-register', { method: 'echo' });
    const caller = open(b.url, 'ann');
    expect(await registered).toEqual({ ok: true });
    expect(await caller.emitWithAck('rpc-call', { method: 'echo', params: [1] })).toEqual({
      ok: true,
      result: { got: [1] },
    });
    expect(await client.call('ann', 'echo', 2)).toEqual({ got: 2 });
    expect(await daemon.emitWithAck('rpc-call', { method: 'echo' })).toMatchObject({
      ok: false,
      code: 'bad_request',
      error: 'Cannot call RPC on the same socket',
    });
    daemon.disconnect();
    await eventually(async () => {
      const answer = await caller.emitWithAck('rpc-call', { method: 'echo', waitForWorkerMs: 0 });
      expect(answer).toEqual({
        ok: false,
        code: 'no_worker',
        error: 'RPC method not available',
        retryable: true,
        mayHaveRun: false,
      });
    });
    const nobody = open(b.url);
    expect(await nobody.emitWithAck('rpc-call', { method: 'echo' })).toMatchObject({ ok: false, code: 'unauthorized' });
    expect(await caller.emitWithAck('rpc-call', { method: 'echo', user: 'bob' })).toMatchObject({
      code: 'permission_denied',
    });
    for (const socket of [caller, nobody]) socket.disconnect();
    await Promise.all([a.stop(), b.stop()]);
  });
});

describe('a stock daemon that moves to another server', () => {
  it('does not answer its next call there with what it owed the first one', async () => {
    const [a, b] = await Promise.all([startApp(), startApp()]);
    const caller = open(b.url, 'zoe');
    const daemon = open(a.url, 'zoe');
    const asked: string[] = [];
    const finish = new Map<string, () => void>();
    daemon.on('rpc-request', ({ params }, ack) => {
      asked.push(params);
      finish.set(params, () => ack(params));
    });
    await daemon.emitWithAck('rpc-register', { method: 'slow' });
    const first = caller.emitWithAck('rpc-call', { method: 'slow', params: 'first' });
    await eventually(() => expect(asked).toEqual(['first']));
    // its acks go out on whatever connection it has
    (daemon.io as unknown as { uri: string }).uri = b.url;
    const lost = new Promise((resolve) => daemon.once('disconnect', resolve));
    a.io.engine.close();
    await lost;
    expect(await first).toMatchObject({ ok: false, code: 'worker_lost', mayHaveRun: true });
    await eventually(() => daemon.connected);
    await daemon.emitWithAck('rpc-register', { method: 'slow' });
    const second = caller.emitWithAck('rpc-call', { method: 'slow', params: 'second' });
    await eventually(() => expect(asked).toEqual(['first', 'second']));
    for (const name of asked) finish.get(name)?.();
    expect(await second).toMatchObject({ ok: true, result: 'second' });
    for (const socket of [caller, daemon]) socket.disconnect();
    await Promise.all([a.stop(), b.stop()]);
  });
});

describe('one registry', () => {
  it('holds what all parts of an app count, added up', async () => {
    const registry = new Registry();
    await using worker = createRpcWorker(shared, { user: 'counted', methods: { one: () => 1 }, registry });
    await using other = createRpcWorker(shared, { user: 'counted', methods: { two: () => 2 }, registry });
    await using caller = createRpcClient(shared, { registry });
    await Promise.all([worker.ready, other.ready]);
    expect(await caller.call('counted', 'one')).toBe(1);
    const text = await registry.metrics();
    expect(text).toMatch(/^holdfast_rpc_registrations 2$/m);
    expect(text).toMatch(/^holdfast_rpc_requests_total\{outcome="ok"\} 1$/m);
    expect(text).toMatch(/^holdfast_rpc_inflight 0$/m);
  });
});

describe('bad options', () => {
  it.each([
    ['no client', () => createRpcClient(undefined), /^createRpcClient: wants an ioredis client/],
    [
      'no function',
      () => createRpcWorker(shared, { user: 'u', methods: { a: 1 as never } }),
      /methods\.a: wants a func/,
    ],
    ['a grace', () => createRpcClient(shared, { graceMs: -1 }), /^createRpcClient: graceMs: wants a whole number/],
    ['a prefix', () => createRpcClient(shared, { prefix: 'a b' }), /^createRpcClient: prefix: wants/],
    ['a tenant', () => createRpcClient(shared, { tenant: '' }), /^createRpcClient: tenant: wants 1 to 200/],
    ['a user', () => createRpcWorker(shared, { user: '', methods: {} }), /^createRpcWorker: user: wants 1 to 200/],
    [
      'a method',
      () => createRpcWorker(shared, { user: 'u', methods: { '': () => {} } }),
      /^createRpcWorker: methods: /,
    ],
    ['no identify', () => attachRpc(new Server(), shared, {} as never), /^attachRpc: identify: wants a function/],
  ])('are named: %s', (_, make, message) => {
    expect(make).toThrow(TypeError);
    expect(make).toThrow(message);
  });
});
