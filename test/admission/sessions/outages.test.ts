import { Redis } from 'ioredis';
import { describe, expect, it, vi } from 'vitest';
import type { DeviceOf } from '../../../src/admission/sessions/index.js';
import { eventually } from '../../harness/poll.js';
import { type RedisProcess, startRedis } from '../../harness/redis.js';
import { startTcpProxy } from '../../harness/tcp-proxy.js';
import {
  type Attempt,
  authoritative,
  keysOf,
  type Member,
  outcome,
  pause,
  someDevice,
  startMember,
  startMembers,
  waitOf,
} from './rig.js';

const SETTINGS = { settleMs: 400, reconnectMax: 0 };

interface Stage extends AsyncDisposable {
  readonly redis: RedisProcess;
  readonly admin: Redis;
  readonly a: Member;
  readonly b: Member;
}

async function stage(): Promise<Stage> {
  const redis = await startRedis();
  const admin = new Redis(redis.url, { maxRetriesPerRequest: null, retryStrategy: () => 50 });
  admin.on('error', () => {});
  const [a, b] = (await startMembers(2, redis.url, { settings: SETTINGS })) as [Member, Member];
  return {
    redis,
    admin,
    a,
    b,
    async [Symbol.asyncDispose]() {
      await Promise.all([a[Symbol.asyncDispose](), b[Symbol.asyncDispose]()]);
      admin.disconnect();
      await redis.stop();
    },
  };
}

/** Redis names the only one that has not lost the device. */
function expectOne(admin: Redis, device: DeviceOf, attempts: readonly Attempt[], withinMs = 10_000): Promise<void> {
  return eventually(
    async () => {
      const holder = await admin.hget(keysOf(device).holder, 'id');
      expect(authoritative(attempts).map(({ id }) => id)).toEqual([holder]);
    },
    { withinMs },
  );
}

describe.concurrent('while Redis stands still', () => {
  it('the first is decided within a second and the others at once, each pod for itself, and the newest wins afterwards', async () => {
    await using at = await stage();
    const { redis, admin, a, b } = at;
    const [before, meanwhile, left] = [someDevice(), someDevice(), someDevice()];
    const first = await a.connect(before);
    const leaving = await a.connect(left);
    await pause(SETTINGS.settleMs);
    redis.pause();
    const attempts = await Promise.all([a.connect(meanwhile), b.connect(before)]);
    expect(attempts.map(outcome)).toEqual(['admitted:local', 'admitted:local']);
    for (const { ms } of attempts) expect(ms).toBeLessThan(SETTINGS.settleMs + 1000);
    const again = await a.connect(meanwhile);
    expect([outcome(again), again.ms < 500]).toEqual(['refused:session_settle', true]);
    // more than two pods' estimates of Redis's time can differ by
    await pause(300);
    const other = await b.connect(meanwhile);
    expect([outcome(other), other.ms < 500]).toEqual(['admitted:local', true]);
    const waits = [await a.sessions.connectWait('10.0.0.1'), await a.sessions.flapWait('10.0.0.1', 'screen')];
    expect(waits).toEqual([0, 0]);
    await expect(b.sessions.end(someDevice())).rejects.toMatchObject({ code: 'unavailable' });
    a.sessions.leave(left, leaving.holder);
    redis.resume();
    await expectOne(admin, before, [first, ...attempts.slice(1)]);
    await expectOne(admin, meanwhile, [attempts[0] as Attempt, again, other]);
    expect([first.holder.evictions, attempts[0]?.holder.evictions, other.holder.evictions]).toEqual([1, 1, 0]);
    await eventually(async () => expect(await admin.hget(keysOf(left).holder, 'id')).toBe(null));
  });

  it('a half-open one loses its device to the next on the same pod, and living ones are taken over twice at most', async () => {
    await using at = await stage();
    const { redis, a } = at;
    const device = someDevice();
    redis.pause();
    const first = await a.connect(device);
    first.holder.isHalfOpen = true;
    const second = await a.connect(device);
    expect([outcome(second), first.holder.evictions]).toEqual(['admitted:local', 1]);
    const attempts = [second];
    for (let n = 0; n < 3; n++) {
      await pause(SETTINGS.settleMs + 5);
      attempts.push(await a.connect(device));
    }
    expect(attempts.map(outcome)).toEqual([...Array(3).fill('admitted:local'), 'refused:session_settle']);
    expect(waitOf(attempts.at(-1))).toBeGreaterThan(50_000);
    expect(authoritative(attempts)).toHaveLength(1);
    redis.resume();
  });

  it('what it takes in afterwards takes nothing from anybody', async () => {
    await using at = await stage();
    const { redis, admin, a, b } = at;
    const device = someDevice();
    const first = await b.connect(device);
    await pause(SETTINGS.settleMs);
    redis.pause();
    const hasty = await a.connect(device);
    expect(outcome(hasty)).toBe('admitted:local');
    a.sessions.leave(device, hasty.holder);
    await pause(600);
    redis.resume();
    await a.pods.hearSelf();
    await b.pods.hearSelf();
    await expectOne(admin, device, [first]);
    expect(first.holder.evictions).toBe(0);
  });
});

it.concurrent('a connection that has left holds nothing, also where Redis had to be sent the script first', async () => {
  await using at = await stage();
  const { admin, a } = at;
  const [before, device] = [someDevice(), someDevice()];
  const { holder } = await a.connect(before);
  await admin.script('FLUSH');
  a.sessions.leave(before, holder);
  await eventually(async () => expect(await admin.hget(keysOf(before).holder, 'id')).toBe(null));
  const hasty = a.newHolder();
  const deciding = a.connect(device, { holder: hasty });
  a.sessions.leave(device, hasty);
  expect(outcome(await deciding)).toBe('refused:session_settle');
  await eventually(async () => expect(await admin.hget(keysOf(device).holder, 'id')).toBe(null));
});

describe.concurrent('sessions that Redis lost', () => {
  it.each(['a wipe', 'a restart', 'a restart without its data'])('are back within seconds after %s', async (fault) => {
    await using at = await stage();
    const { redis, admin, a, b } = at;
    const devices = Array.from({ length: 200 }, () => someDevice());
    const attempts = await Promise.all(devices.map((device, n) => (n % 2 ? a : b).connect(device)));
    if (fault === 'a restart without its data') {
      await admin.config('SET', 'appendonly', 'no');
      await admin.flushall();
    }
    const missing = a.counts.of('session_reasserted_total');
    if (fault === 'a wipe') await admin.flushall();
    else await redis.restart();
    const at0 = performance.now();
    await Promise.all(devices.map((device, n) => expectOne(admin, device, [attempts[n] as Attempt])));
    expect(performance.now() - at0).toBeLessThan(10_000);
    expect(attempts.filter(({ holder }) => holder.evictions > 0)).toEqual([]);
    if (fault === 'a wipe') await eventually(() => expect(a.counts.of('session_reasserted_total') - missing).toBe(100));
    const newcomer = await a.connect(devices[0] as DeviceOf);
    await expectOne(admin, devices[0] as DeviceOf, [attempts[0] as Attempt, newcomer]);
  });

  it('come back with their age: the older of two pods loses its device, also where no message told it', async () => {
    await using at = await stage();
    const { admin, a, b } = at;
    const device = someDevice();
    const first = await a.connect(device);
    await admin.del(keysOf(device).holder);
    const second = await b.connect(device);
    expect(outcome(second)).toBe('admitted:admit');
    await eventually(() => expect(first.holder.evictions).toBe(1), { withinMs: 10_000 });
    await expectOne(admin, device, [first, second]);
    expect(a.counts.of('session_evictions_total{assertion}')).toBe(1);
  });

  it('a newer one whose process died costs a living one nothing', async () => {
    await using at = await stage();
    const { admin, a } = at;
    const device = someDevice();
    const attempt = await a.connect(device);
    await eventually(() => a.pods.mayJudge);
    await admin.hset(keysOf(device).holder, { id: 'a-dead-process.1', at: Date.now() + 5 });
    await expectOne(admin, device, [attempt]);
    expect(attempt.holder.evictions).toBe(0);
  });
});

it.concurrent('a pod that stood still while its device moved loses it when it is back', async () => {
  await using at = await stage();
  const { redis, admin, a, b } = at;
  await using proxy = await startTcpProxy(redis.port);
  await using frozen = await startMember(redis.url, {
    settings: SETTINGS,
    through: `redis://127.0.0.1:${proxy.port}`,
  });
  await eventually(() => a.pods.mayJudge);
  const device = someDevice();
  const first = await frozen.connect(device);
  proxy.blackhole(true);
  const second = await a.connect(device);
  expect(outcome(second)).toBe('admitted:takeover');
  expect(second.ms).toBeLessThan(SETTINGS.settleMs + 1000);
  // longer than its lease
  await eventually(() => a.counts.of('processes_reaped_total') + b.counts.of('processes_reaped_total') === 1, {
    withinMs: 15_000,
  });
  proxy.blackhole(false);
  await eventually(() => expect(first.holder.evictions).toBe(1), { withinMs: 10_000 });
  await expectOne(admin, device, [first, second]);
  expect(second.holder.evictions).toBe(0);
});

/** As a process that gets no CPU. */
function standStill(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

describe('a process that stood still', () => {
  it('reads what Redis answered meanwhile before it decides by itself', async () => {
    await using at = await stage();
    const { a, b } = at;
    const device = someDevice();
    await b.connect(device);
    const deciding = a.connect(device);
    standStill(1000);
    expect(outcome(await deciding)).toBe('refused:session_settle');
    expect(a.counts.of('session_decisions_total{local}')).toBe(0);
  });

  it('asks a holder of its own again before it takes it for dead', async () => {
    await using at = await stage();
    const { a } = at;
    const device = someDevice();
    const { holder } = await a.connect(device);
    holder.delayMs = 50;
    const deciding = a.connect(device);
    await eventually(() => holder.probes === 1);
    standStill(1000);
    expect(outcome(await deciding)).toBe('refused:session_settle');
  });
});

describe('clocks', () => {
  it("of pods don't matter, and one of Redis that was set back does not lock a device up", async () => {
    await using at = await stage();
    const { admin, a, b } = at;
    const device = someDevice();
    const first = await a.connect(device);
    vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + 3_600_000 });
    try {
      expect(outcome(await b.connect(device))).toBe('refused:session_settle');
    } finally {
      vi.useRealTimers();
    }
    const { holder, flaps } = keysOf(device);
    await admin.hset(holder, 'at', Date.now() + 3_600_000, 't1', Date.now() + 3_600_000, 't2', Date.now() + 3_600_000);
    await admin.rpush(flaps, ...Array<number>(20).fill(Date.now() + 3_600_000));
    const second = await b.connect(device);
    expect(outcome(second)).toBe('admitted:takeover');
    await expectOne(admin, device, [first, second]);
  });
});
