import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { type Member, startMember, TestDaemon } from './rig.js';

const GRACE_MS = 1200;
let redis: RedisProcess;
let admin: Redis;
let a: Member;
let b: Member;
let users = 0;

const someone = (): string => `user-${++users}`;
const registry = (user: string): string => `hf:rpc:{default/${user}}:@reg`;
const slowly = (ms: number) => () => new Promise((resolve) => setTimeout(resolve, ms, 'done'));

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = new Redis(redis.url);
  [a, b] = await Promise.all([
    startMember(redis.url, { graceMs: GRACE_MS }),
    startMember(redis.url, { graceMs: GRACE_MS }),
  ]);
});

afterAll(async () => {
  await Promise.all([a?.[Symbol.asyncDispose](), b?.[Symbol.asyncDispose]()]);
  admin?.disconnect();
  await redis?.[Symbol.asyncDispose]();
});

describe.concurrent('the newest registration of a method', () => {
  it.each(['another process', 'the same process'])('has it, and the one before is told, in %s', async (where) => {
    const user = someone();
    const old = await a.serve(new TestDaemon(user, () => 'old'), 'm');
    const young = await (where === 'another process' ? b : a).serve(new TestDaemon(user, () => 'young'), 'm');
    expect(await a.call(user, 'm')).toEqual({ ok: true, result: 'young' });
    await eventually(() => expect(old.replaced).toEqual(['m']));
    expect([young.replaced, old.requests]).toEqual([[], []]);
    await a.rpc.leave(old, false);
    expect(await b.call(user, 'm')).toEqual({ ok: true, result: 'young' });
  });

  it('takes over what the one before had in work, if that may come again', async () => {
    const user = someone();
    const first = await a.serve(new TestDaemon(user, slowly(1500)), 'm', 'one-process');
    const raw = a.call(user, 'm', 'raw');
    const safe = a.call(user, 'm', 'safe', { isIdempotent: true });
    await eventually(() => first.requests.length === 2);
    const second = await b.serve(new TestDaemon(user, () => 'second'), 'm', 'another-process');
    expect(await raw).toMatchObject({ code: 'worker_lost', mayHaveRun: true });
    expect(await safe).toEqual({ ok: true, result: 'second' });
    expect(second.requests).toMatchObject([{ params: 'safe', attempt: 2 }]);
  });

  it('stays where a former one comes back with its fence', async () => {
    const user = someone();
    const old = await a.serve(new TestDaemon(user), 'm');
    const [kept] = a.rpc.kept(old);
    const young = await b.serve(new TestDaemon(user, () => 'young'), 'm');
    const again = new TestDaemon(user, () => 'again');
    expect(await a.rpc.register(again, 'm', false, kept?.[2])).toBe('lost');
    expect(again.replaced).toEqual(['m']);
    expect(await a.call(user, 'm')).toEqual({ ok: true, result: 'young' });
    expect(young.replaced).toEqual([]);
  });

  it('keeps it where another of its process comes back too late, or leaves as it comes', async () => {
    const user = someone();
    const old = await a.serve(new TestDaemon(user), 'm');
    const [kept] = a.rpc.kept(old);
    const rightful = await a.serve(new TestDaemon(user, () => 'rightful'), 'm');
    expect(await a.rpc.register(new TestDaemon(user), 'm', false, kept?.[2])).toBe('lost');
    expect(await b.call(user, 'm')).toEqual({ ok: true, result: 'rightful' });
    const hasty = new TestDaemon(user, () => 'hasty');
    const registering = a.rpc.register(hasty, 'm', false);
    await a.rpc.leave(hasty, true);
    await registering;
    expect(await b.call(user, 'm')).toEqual({ ok: true, result: 'rightful' });
    expect(rightful.replaced).toEqual([]);
  });

  it('that comes again at once is not undone by what is said of the one before', async () => {
    const user = someone();
    const [one, other] = [new TestDaemon(user, () => 'one'), new TestDaemon(user, () => 'other')];
    for (let round = 0; round < 40; round++) {
      await a.serve(one, 'm');
      const both = [
        b.serve(other, 'm'),
        new Promise((resolve) => setTimeout(resolve, round % 5)).then(() => a.serve(one, 'm')),
      ];
      await Promise.all(both);
      expect(await b.call(user, 'm')).toMatchObject({ ok: true });
    }
  });

  it('that is the same one changes nothing for what it has in work', async () => {
    const user = someone();
    const daemon = await b.serve(new TestDaemon(user, slowly(300)), 'm');
    const calling = a.call(user, 'm');
    await eventually(() => daemon.requests.length === 1);
    for (let n = 0; n < 3; n++) await b.serve(daemon, 'm');
    expect(await calling).toEqual({ ok: true, result: 'done' });
    expect(daemon.requests).toHaveLength(1);
  });
});

describe.concurrent('a daemon whose connection is lost', () => {
  it('is waited for, and answers what came meanwhile and what it may have again', async () => {
    const user = someone();
    const before = await a.serve(new TestDaemon(user, slowly(60_000)), 'm', 'it');
    const inWork = b.call(user, 'm', 'in work');
    await eventually(() => before.requests.length === 1);
    await a.rpc.leave(before, false);
    const meanwhile = b.call(user, 'm', 'meanwhile');
    await eventually(async () => (await admin.llen(`hf:rpc:{default/${user}}:m:wait`)) === 2);
    const after = await b.serve(new TestDaemon(user, ({ params }) => params), 'm', 'it');
    expect(await Promise.all([inWork, meanwhile])).toEqual([
      { ok: true, result: 'in work' },
      { ok: true, result: 'meanwhile' },
    ]);
    expect(after.requests.map(({ attempt }) => attempt).sort()).toEqual([1, 2]);
  });

  it('and that can only be raw is told of at once', async () => {
    const user = someone();
    const daemon = await a.serve(new TestDaemon(user, slowly(60_000)), 'm');
    const calling = b.call(user, 'm');
    await eventually(() => daemon.requests.length === 1);
    await a.rpc.leave(daemon, false);
    expect(await calling).toMatchObject({ code: 'worker_lost', mayHaveRun: true, error: 'RPC target disconnected' });
  });

  it('for good is worker_lost at the end of the grace, then no_worker, then nothing', async () => {
    const user = someone();
    await a.rpc.leave(await a.serve(new TestDaemon(user), 'm'), false);
    const startedAt = performance.now();
    expect(await b.call(user, 'm', 1, { waitForWorkerMs: 0 })).toMatchObject({ code: 'no_worker' });
    expect(performance.now() - startedAt).toBeLessThan(GRACE_MS / 2);
    const lost = await b.call(user, 'm');
    expect(lost).toMatchObject({ code: 'worker_lost', mayHaveRun: false, error: 'RPC target not reachable' });
    expect(performance.now() - startedAt).toBeLessThan(GRACE_MS + 1500);
    expect(await b.call(user, 'm')).toMatchObject({ code: 'no_worker' });
    expect(await admin.pttl(registry(user))).toBeGreaterThan(0);
  });

  it('on purpose takes what waits with it, at once', async () => {
    const user = someone();
    const daemon = await a.serve(new TestDaemon(user, slowly(500)), 'm');
    const calls = Array.from({ length: 70 }, (_, n) => b.call(user, 'm', n));
    await eventually(
      async () => (await admin.llen(`hf:rpc:{default/${user}}:m:wait`)) > 0 && daemon.requests.length === 64,
    );
    await a.rpc.unregister(daemon, 'm');
    const startedAt = performance.now();
    expect(await b.call(user, 'm')).toMatchObject({ code: 'no_worker' });
    const outcomes = await Promise.all(calls);
    expect(performance.now() - startedAt).toBeLessThan(1500);
    // what was in work is finished
    expect(outcomes.filter(({ ok }) => ok)).toHaveLength(64);
    expect(outcomes.filter((outcome) => !outcome.ok && outcome.code === 'no_worker')).toHaveLength(6);
  });
});

describe('a registration that Redis lost', () => {
  it.each(['the registry', 'its entry'])('is written again, and counted: %s', async (what) => {
    const user = someone();
    await b.serve(new TestDaemon(user), 'm');
    const before = b.counts.of('rpc_reasserted_total');
    if (what === 'the registry') await admin.del(registry(user));
    else await admin.hdel(registry(user), 'm');
    expect(await a.call(user, 'm')).toMatchObject({ code: 'no_worker' });
    await eventually(async () => expect(await a.call(user, 'm', 1)).toMatchObject({ ok: true }), { withinMs: 10_000 });
    expect(b.counts.of('rpc_reasserted_total')).toBeGreaterThan(before);
  });
});
