import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { type Member, startMember, TestDaemon } from './rig.js';

let redis: RedisProcess;
let admin: Redis;
let a: Member;
let b: Member;
let users = 0;

const someone = (): string => `user-${++users}`;
const scope = (user: string): string => `hf:rpc:{default/${user}}:`;
const never = (): Promise<never> => new Promise(() => {});

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = new Redis(redis.url);
  [a, b] = await Promise.all([startMember(redis.url), startMember(redis.url)]);
});

afterAll(async () => {
  await Promise.all([a?.[Symbol.asyncDispose](), b?.[Symbol.asyncDispose]()]);
  admin?.disconnect();
  await redis?.[Symbol.asyncDispose]();
});

describe.concurrent('a call', () => {
  it.each(['another process', 'the same process'])('is answered by a daemon of %s', async (where) => {
    const user = someone();
    const daemon = await (where === 'another process' ? b : a).serve(new TestDaemon(user), 'echo');
    expect(await a.call(user, 'echo', { text: 'hello' })).toEqual({ ok: true, result: { text: 'hello' } });
    expect(daemon.requests).toMatchObject([{ method: 'echo', params: { text: 'hello' }, attempt: 1 }]);
  });

  it.each([8000, 9000, 900_000])('carries %i characters either way', async (length) => {
    const user = someone();
    await b.serve(new TestDaemon(user), 'echo');
    const params = '💥x'.repeat(length / 6);
    expect(await a.call(user, 'echo', params)).toEqual({ ok: true, result: params });
  });

  it('with params or a result over the limit is payload_too_large', async () => {
    const user = someone();
    await b.serve(new TestDaemon(user, () => 'x'.repeat(1_000_001)), 'large');
    expect(await a.call(user, 'large', 'é'.repeat(500_001))).toMatchObject({
      code: 'payload_too_large',
      mayHaveRun: false,
    });
    expect(await a.call(user, 'large')).toMatchObject({ code: 'payload_too_large', mayHaveRun: true });
  });

  it('of a method that nobody has leaves no key', async () => {
    const user = someone();
    expect(await a.call(user, 'nothing')).toMatchObject({ code: 'no_worker', mayHaveRun: false });
    expect(await admin.keys(`${scope(user)}*`)).toEqual([]);
  });

  it('may wait for a first worker', async () => {
    const user = someone();
    const calling = a.call(user, 'soon', 1, { waitForWorkerMs: 3000 });
    await eventually(async () => (await admin.llen(`${scope(user)}soon:wait`)) === 1);
    await b.serve(new TestDaemon(user), 'soon');
    expect(await calling).toEqual({ ok: true, result: 1 });
    expect(await a.call(user, 'never', 1, { waitForWorkerMs: 700 })).toMatchObject({ code: 'no_worker' });
  });

  it('beyond the bound of a queue is overloaded, and every other is answered', async () => {
    const user = someone();
    await using small = await startMember(redis.url, { maxQueued: 100 });
    const calls = Array.from({ length: 500 }, (_, n) => small.call(user, 'slow', n, { waitForWorkerMs: 5000 }));
    let refused = 0;
    for (const call of calls) void call.then(({ ok }) => (refused += ok ? 0 : 1));
    await eventually(() => expect(refused).toBe(400));
    await eventually(async () => (await admin.llen(`${scope(user)}slow:wait`)) === 100);
    await b.serve(new TestDaemon(user), 'slow');
    const outcomes = await Promise.all(calls);
    expect(outcomes.filter(({ ok }) => ok)).toHaveLength(100);
    expect(outcomes.filter((outcome) => !outcome.ok && outcome.code === 'overloaded')).toHaveLength(400);
  });

  it('is one of at most 64 that its daemon has at once, and in turn with those of other methods', async () => {
    const user = someone();
    let present = 0;
    let most = 0;
    const daemon = new TestDaemon(user, async ({ params }) => {
      most = Math.max(most, ++present);
      await new Promise((resolve) => setTimeout(resolve, 5));
      present--;
      return params;
    });
    await Promise.all([b.serve(daemon, 'one'), b.serve(daemon, 'two')]);
    const calls = Array.from({ length: 600 }, (_, n) => a.call(user, n % 2 === 0 ? 'one' : 'two', n));
    expect(await Promise.all(calls)).toEqual(Array.from({ length: 600 }, (_, n) => ({ ok: true, result: n })));
    expect(most).toBe(64);
    expect(daemon.requests).toHaveLength(600);
  });
});

describe.concurrent('an id', () => {
  it('is the same call for the same caller, method and params, during the call and after it, on any process', async () => {
    const user = someone();
    const daemon = await b.serve(
      new TestDaemon(user, () => new Promise((resolve) => setTimeout(resolve, 300, 'x'))),
      'm',
    );
    const same = { id: 'the-one' };
    const during = await Promise.all([
      a.call(user, 'm', 1, same),
      a.call(user, 'm', 1, same),
      b.call(user, 'm', 1, same),
    ]);
    expect(during).toEqual([1, 2, 3].map(() => ({ ok: true, result: 'x' })));
    for (const member of [a, b]) expect(await member.call(user, 'm', 1, same)).toEqual({ ok: true, result: 'x' });
    const name = { caller: 'test', tenant: 'default', user, id: 'the-one' };
    for (const member of [a, b]) expect(await member.rpc.attach(name)).toEqual({ ok: true, result: 'x' });
    expect(daemon.requests).toHaveLength(1);
  });

  it('with another method or params is a conflict, and of another caller another call', async () => {
    const user = someone();
    const daemon = await b.serve(new TestDaemon(user), 'm');
    await b.serve(daemon, 'n');
    const id = { id: 'taken' };
    expect(await a.call(user, 'm', 1, id)).toMatchObject({ ok: true });
    for (const member of [a, b]) {
      expect(await member.call(user, 'm', 2, id)).toMatchObject({ code: 'conflict', mayHaveRun: false });
      expect(await member.call(user, 'n', 1, id)).toMatchObject({ code: 'conflict' });
    }
    expect(await a.call(user, 'm', 2, { ...id, caller: 'somebody else' })).toEqual({ ok: true, result: 2 });
    expect(daemon.requests).toHaveLength(2);
  });

  it('that nobody knows can be cancelled before its call comes, and not attached to', async () => {
    const user = someone();
    const daemon = await b.serve(new TestDaemon(user), 'm');
    const name = { caller: 'test', tenant: 'default', user, id: 'not-yet' };
    expect(await a.rpc.attach(name)).toMatchObject({ ok: false, code: 'bad_request' });
    expect(await b.rpc.cancel(name)).toBe(true);
    expect(await a.call(user, 'm', 1, { id: 'not-yet' })).toMatchObject({ code: 'cancelled', mayHaveRun: false });
    expect(daemon.requests).toEqual([]);
  });
});

describe('a call that is given up', () => {
  it('never begins, if it had not', async () => {
    const user = someone();
    const calls = Array.from({ length: 50 }, (_, n) =>
      a.call(
        user,
        'm',
        n,
        n % 2 === 0 ? { waitForWorkerMs: 5000, id: `c${n}` } : { waitForWorkerMs: 5000, timeoutMs: 400 },
      ),
    );
    await eventually(async () => (await admin.llen(`${scope(user)}m:wait`)) === 50);
    await Promise.all(
      calls.map((_, n) => n % 2 === 0 && b.rpc.cancel({ caller: 'test', tenant: 'default', user, id: `c${n}` })),
    );
    const outcomes = await Promise.all(calls);
    for (const [n, outcome] of outcomes.entries())
      expect(outcome).toMatchObject({ code: n % 2 === 0 ? 'cancelled' : 'timeout', mayHaveRun: false });
    const daemon = await b.serve(new TestDaemon(user), 'm');
    expect(await a.call(user, 'm', 'after')).toMatchObject({ ok: true });
    expect(daemon.requests.map(({ params }) => params)).toEqual(['after']);
  });

  it('in work ends for everybody who waits, and its daemon is told', async () => {
    const user = someone();
    const daemon = await b.serve(new TestDaemon(user, never), 'm');
    const waiting = [a.call(user, 'm', 1, { id: 'x' }), b.call(user, 'm', 1, { id: 'x' })];
    await eventually(() => daemon.requests.length === 1);
    expect(await b.rpc.cancel({ caller: 'test', tenant: 'default', user, id: 'x' })).toBe(true);
    for (const outcome of await Promise.all(waiting))
      expect(outcome).toMatchObject({ code: 'cancelled', mayHaveRun: true });
    await eventually(() => expect(daemon.givenUp).toEqual([{ id: daemon.requests[0]?.id, reason: 'cancelled' }]));
    expect(await a.call(user, 'm', 2, { timeoutMs: 200 })).toMatchObject({ code: 'timeout', mayHaveRun: true });
    await eventually(() => expect(daemon.givenUp[1]).toMatchObject({ reason: 'timeout' }));
  });

  it('leaves no place taken', async () => {
    const user = someone();
    const daemon = await b.serve(new TestDaemon(user, ({ params }) => (params === 'hang' ? never() : params)), 'm');
    const hanging = Array.from({ length: 64 }, () => a.call(user, 'm', 'hang', { timeoutMs: 300 }));
    for (const outcome of await Promise.all(hanging)) expect(outcome).toMatchObject({ code: 'timeout' });
    expect(await a.call(user, 'm', 'now')).toEqual({ ok: true, result: 'now' });
    expect(daemon.requests).toHaveLength(65);
  });
});

describe.concurrent('whatever a handler answers', () => {
  it.each([
    ['a text that looks packed', '\u0000msgpack:not msgpack'],
    ['a key that no decoder takes', JSON.parse('{"__proto__": 1, "a": 2}')],
    ['bytes in a buffer of their own', { file: new Uint8Array([1, 2]).buffer }, { file: Buffer.from([1, 2]) }],
  ])('its caller hears it: %s', async (_, value, heard = value) => {
    const user = someone();
    await b.serve(new TestDaemon(user, () => value), 'm');
    expect(await a.call(user, 'm', 1)).toEqual({ ok: true, result: heard });
  });

  it('what cannot be carried is a failure with a text, and the next call is answered', async () => {
    const user = someone();
    const poison = JSON.parse('{"__proto__": 1}');
    poison.bytes = new Uint8Array(2);
    await b.serve(new TestDaemon(user, ({ params }) => (params === 'poison' ? poison : params)), 'm');
    expect(await a.call(user, 'm', 'poison')).toMatchObject({ code: 'handler_error', mayHaveRun: true });
    expect(await a.call(user, 'm', 'next')).toEqual({ ok: true, result: 'next' });
  });
});

describe.concurrent('one id', () => {
  it('that is attached to and then called again in one process has its answer twice', async () => {
    const user = someone();
    await b.serve(new TestDaemon(user, () => new Promise((resolve) => setTimeout(resolve, 400, 'x'))), 'm');
    const first = b.call(user, 'm', 1, { id: 'x' });
    await eventually(async () => (await admin.llen(`${scope(user)}m:active`)) === 1);
    const attached = a.rpc.attach({ caller: 'test', tenant: 'default', user, id: 'x' });
    const again = a.call(user, 'm', 1, { id: 'x' });
    for (const outcome of await Promise.all([first, attached, again]))
      expect(outcome).toEqual({ ok: true, result: 'x' });
    expect(a.rpc.pendingCount).toBe(0);
  });

  it('whose call was cancelled in work says that it may have run, also when it is called again', async () => {
    const user = someone();
    const daemon = await b.serve(new TestDaemon(user, never), 'm');
    const calling = a.call(user, 'm', 1, { id: 'y' });
    await eventually(() => daemon.requests.length === 1);
    await a.rpc.cancel({ caller: 'test', tenant: 'default', user, id: 'y' });
    expect(await calling).toMatchObject({ code: 'cancelled', mayHaveRun: true });
    expect(await a.call(user, 'm', 1, { id: 'y' })).toMatchObject({ code: 'cancelled', mayHaveRun: true });
  });
});

it('a process that has stopped answers at once', async () => {
  const member = await startMember(redis.url);
  await member[Symbol.asyncDispose]();
  expect(await member.call('nobody', 'm')).toMatchObject({ code: 'unavailable', mayHaveRun: false });
});
