import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../../harness/poll.js';
import { type RedisProcess, startRedis } from '../../harness/redis.js';
import {
  type Attempt,
  isAdmitted,
  keysOf,
  type Member,
  outcome,
  pause,
  someDevice,
  startMember,
  startMembers,
  waitOf,
} from './rig.js';

/** Short, so that tests can wait for its end. */
const SETTLE_MS = 300;
const SETTINGS = { settleMs: SETTLE_MS };

let redis: RedisProcess;
let admin: Redis;
let a: Member;
let b: Member;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = new Redis(redis.url);
  [a, b] = (await startMembers(2, redis.url, { settings: SETTINGS })) as [Member, Member];
  await eventually(() => a.pods.mayJudge && b.pods.mayJudge);
});

afterAll(async () => {
  await Promise.all([a?.[Symbol.asyncDispose](), b?.[Symbol.asyncDispose]()]);
  admin?.disconnect();
  await redis?.[Symbol.asyncDispose]();
});

const holderOf = (device: Parameters<typeof keysOf>[0]) => admin.hget(keysOf(device).holder, 'id');

describe.concurrent.each([
  ['the same process', () => a],
  ['another process', () => b],
])('a newcomer, its incumbent on %s', (_where, there) => {
  it('is refused softly inside the settle window, and the incumbent stays', async () => {
    const device = someDevice();
    const first = await there().connect(device);
    const second = await a.connect(device);
    expect([outcome(first), outcome(second)]).toEqual(['admitted:admit', 'refused:session_settle']);
    const retryAfterMs = waitOf(second);
    expect(retryAfterMs).toBeGreaterThan(0);
    expect(retryAfterMs).toBeLessThanOrEqual(SETTLE_MS);
    expect([first.holder.probes, first.holder.evictions]).toEqual([1, 0]);
    expect(await holderOf(device)).toBe(first.holder.id);
    await pause(retryAfterMs + 5);
    expect(outcome(await a.connect(device))).toBe('admitted:takeover');
    await eventually(() => expect(first.holder.evictions).toBe(1));
  });

  it('takes the device at once from one that is half-open: within settle time and a second', async () => {
    const device = someDevice();
    const first = await there().connect(device);
    first.holder.isHalfOpen = true;
    const second = await a.connect(device);
    expect(outcome(second)).toBe('admitted:takeover');
    expect(second.ms).toBeLessThan(SETTLE_MS + 1000);
    await eventually(() => expect(first.holder.evictions).toBe(1));
    expect(await holderOf(device)).toBe(second.holder.id);
  });

  it('takes it at once from one that has left unnoticed', async () => {
    const attempts: Attempt[] = [];
    for (let round = 0; round < 4; round++) {
      const device = someDevice();
      await admin.hset(keysOf(device).holder, { id: `${there().processId}.gone`, at: Date.now() });
      attempts.push(await a.connect(device));
    }
    expect(attempts.map(outcome)).toEqual(Array(4).fill('admitted:takeover'));
    // a wait would be in each, what a busy machine takes is not
    expect(Math.min(...attempts.map(({ ms }) => ms))).toBeLessThan(SETTLE_MS);
  });

  it('is one of 30 at the same instant: one is let in, and loses it to none of them', async () => {
    const device = someDevice();
    const attempts = await Promise.all(Array.from({ length: 30 }, (_, n) => (n % 2 ? a : there()).connect(device)));
    const admitted = attempts.filter(isAdmitted);
    expect(admitted.map(outcome)).toEqual(['admitted:admit']);
    expect(await holderOf(device)).toBe(admitted[0]?.holder.id);
    expect(attempts.reduce((sum, { holder }) => sum + holder.evictions, 0)).toBe(0);
  });

  it('keeps the device when the one before it ends late', async () => {
    const device = someDevice();
    const first = await there().connect(device);
    await pause(SETTLE_MS);
    const second = await a.connect(device);
    expect(outcome(second)).toBe('admitted:takeover');
    // before and after it has heard that it lost
    there().sessions.leave(device, first.holder);
    await there().pods.hearSelf();
    there().sessions.leave(device, first.holder);
    expect(await holderOf(device)).toBe(second.holder.id);
    expect(outcome(await there().connect(device))).toBe('refused:session_settle');
  });

  it('finds nobody when the one before it has left', async () => {
    const device = someDevice();
    const first = await there().connect(device);
    there().sessions.leave(device, first.holder);
    there().sessions.leave(device, first.holder);
    await eventually(async () => expect(await holderOf(device)).toBe(null));
    expect(outcome(await a.connect(device))).toBe('admitted:admit');
    expect(first.holder.evictions).toBe(0);
  });

  it('does not hold what it left before it was told', async () => {
    const device = someDevice();
    const holder = there().newHolder();
    const deciding = there().connect(device, { holder });
    there().sessions.leave(device, holder);
    expect(outcome(await deciding)).toBe('refused:session_settle');
    await eventually(async () => expect(await holderOf(device)).toBe(null));
  });

  it('takes over a living one twice within the loop time, and a dead one as often as it likes', async () => {
    const device = someDevice();
    let newest = await there().connect(device);
    for (let n = 0; n < 4; n++) {
      await pause(SETTLE_MS + 5);
      const attempt = await (n % 2 ? a : there()).connect(device);
      expect(outcome(attempt)).toBe(n < 2 ? 'admitted:takeover' : 'refused:session_settle');
      if (n >= 2) expect(waitOf(attempt)).toBeGreaterThan(50_000);
      else newest = attempt;
    }
    expect(await holderOf(device)).toBe(newest.holder.id);
    expect(newest.holder.evictions).toBe(0);
    for (let n = 0; n < 2; n++) {
      newest.holder.isHalfOpen = true;
      newest = await a.connect(device);
      expect(outcome(newest)).toBe('admitted:takeover');
    }
  });

  it('is not the same one as the same device of another user', async () => {
    const device = someDevice('screen');
    const others = [someDevice('screen'), { ...device, tenant: 'other' }, { ...device, user: `${device.user}/screen` }];
    const attempts = [await there().connect(device)];
    for (const other of others) attempts.push(await a.connect(other));
    expect(attempts.map(outcome)).toEqual(attempts.map(() => 'admitted:admit'));
    expect(attempts.map(({ holder }) => holder.evictions)).toEqual([0, 0, 0, 0]);
  });

  it('is let in after whoever had the device was ended', async () => {
    const device = someDevice();
    expect(await a.sessions.end(device)).toBe(false);
    const first = await there().connect(device);
    expect(await a.sessions.end(device)).toBe(true);
    await eventually(() => expect(first.holder.evictions).toBe(1));
    await eventually(async () => expect(await holderOf(device)).toBe(null));
    there().sessions.leave(device, first.holder);
    expect(outcome(await a.connect(device))).toBe('admitted:admit');
  });
});

describe.concurrent('proofs of life', () => {
  it('are one for all who ask at once', async () => {
    const device = someDevice();
    const { holder } = await b.connect(device);
    holder.delayMs = 150;
    const before = performance.now();
    const attempts = await Promise.all(Array.from({ length: 20 }, (_, n) => (n % 2 ? a : b).connect(device)));
    expect(attempts.map(outcome)).toEqual(attempts.map(() => 'refused:session_settle'));
    expect(performance.now() - before).toBeLessThan(SETTLE_MS);
    expect(holder.probes).toBe(1);
  });

  it('of a half-open one let one of many in, and not one after the other', async () => {
    const device = someDevice();
    const { holder } = await b.connect(device);
    holder.isHalfOpen = true;
    const attempts = await Promise.all(Array.from({ length: 20 }, (_, n) => (n % 2 ? a : b).connect(device)));
    expect(attempts.map(outcome).filter((one) => one !== 'refused:session_settle')).toEqual(['admitted:takeover']);
    await eventually(() => expect(holder.evictions).toBe(1));
  });

  it('are not waited for when the process is gone', async () => {
    await using dying = await startMember(redis.url, { settings: SETTINGS });
    const devices = Array.from({ length: 4 }, someDevice);
    for (const device of devices) await dying.connect(device);
    dying.vanish();
    await eventually(async () => expect(await admin.pubsub('NUMSUB', `hf:self:${dying.processId}`)).toContain(0));
    const attempts: Attempt[] = [];
    for (const device of devices) attempts.push(await a.connect(device));
    expect(attempts.map(outcome)).toEqual(Array(4).fill('admitted:takeover'));
    // a wait would be in each, what a busy machine takes is not
    expect(Math.min(...attempts.map(({ ms }) => ms))).toBeLessThan(SETTLE_MS);
  });
});

it.concurrent('decisions and what they cost are counted', async () => {
  await using member = await startMember(redis.url, { settings: SETTINGS });
  const device = someDevice();
  await member.connect(device);
  await member.connect(device);
  await pause(SETTLE_MS);
  const third = await member.connect(device);
  third.holder.isHalfOpen = true;
  const fourth = await member.connect(device);
  const of = (name: string) => member.counts.of(name);
  const decisions = ['admit', 'settle', 'takeover', 'dead', 'local', 'loop'];
  expect(decisions.map((decision) => of(`session_decisions_total{${decision}}`))).toEqual([1, 1, 1, 1, 0, 0]);
  expect(of('session_evictions_total{takeover}')).toBe(2);
  expect(['alive', 'silent'].map((outcome) => of(`session_proofs_total{${outcome}}`))).toEqual([1, 1]);
  member.sessions.leave(device, fourth.holder);
});
