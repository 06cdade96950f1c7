import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Keys } from '../../../src/redis/keys.js';
import { eventually } from '../../harness/poll.js';
import { type RedisProcess, startRedis } from '../../harness/redis.js';
import {
  type Attempt,
  isAdmitted,
  keysOf,
  type Member,
  outcome,
  someDevice,
  startMember,
  startMembers,
  waitOf,
} from './rig.js';

const COLD = new Keys('cold:');
const SETTINGS = { settleMs: 0, loopMs: 0, warmupMs: 0 };

let redis: RedisProcess;
let admin: Redis;
let members: Member[];
let addresses = 0;

const someAddress = (): string => `10.0.0.${++addresses}`;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = new Redis(redis.url);
  members = await startMembers(3, redis.url, { keys: COLD, settings: SETTINGS });
});

afterAll(async () => {
  await Promise.all((members ?? []).map((member) => member[Symbol.asyncDispose]()));
  admin?.disconnect();
  await redis?.[Symbol.asyncDispose]();
});

/** `count` connections one after another, over all members; each leaves before the next comes. */
async function reconnect(
  device: ReturnType<typeof someDevice>,
  count: number,
  { isPaired = true, over = members } = {},
): Promise<Attempt[]> {
  const attempts: Attempt[] = [];
  for (let n = 0; n < count; n++) {
    const member = over[n % over.length] as Member;
    const attempt = await member.connect(device, { isPaired });
    attempts.push(attempt);
    member.sessions.leave(device, attempt.holder);
  }
  return attempts;
}

/** Times of a list in Redis, moved back: as if that time had passed. */
async function age(key: string, ms: number): Promise<void> {
  const times = await admin.lrange(key, 0, -1);
  await admin.del(key);
  if (times.length > 0) await admin.rpush(key, ...times.map((at) => Number(at) - ms));
}

const countOf = (attempts: readonly Attempt[], what: string): number =>
  attempts.filter((attempt) => outcome(attempt) === what).length;

describe.concurrent('reconnects of a device', () => {
  it('are 5 within 10 s, on all members together, and one more when the first is 10 s old', async () => {
    const device = someDevice();
    const attempts = await reconnect(device, 8);
    expect(attempts.map(isAdmitted)).toEqual([...Array(5).fill(true), ...Array(3).fill(false)]);
    expect(attempts.slice(5).map(outcome)).toEqual(Array(3).fill('refused:reconnect'));
    const retryAfterMs = waitOf(attempts.at(-1));
    expect(retryAfterMs).toBeGreaterThan(5000);
    await age(keysOf(device, COLD).reconnects, retryAfterMs);
    expect((await reconnect(device, 1)).map(isAdmitted)).toEqual([true]);
  });

  it('are not used up by soft refusals of a paired one, and are by those of one that is not', async () => {
    const settings = { ...SETTINGS, settleMs: 60_000 };
    await using member = await startMember(redis.url, { keys: COLD, settings });
    for (const isPaired of [true, undefined, false]) {
      const device = someDevice();
      const first = await member.connect(device, { isPaired });
      for (let n = 0; n < 10; n++) await member.connect(device, { isPaired });
      member.sessions.leave(device, first.holder);
      const next = await member.connect(device, { isPaired });
      expect(outcome(next)).toBe(isPaired === false ? 'refused:reconnect' : 'admitted:admit');
      const flaps = await admin.llen(keysOf(device, COLD).flaps);
      expect(flaps).toBe(isPaired === false ? 12 : 2);
    }
  });
});

describe.concurrent('a device at its flap limit', () => {
  const settings = { ...SETTINGS, reconnectMax: 0 };

  it('is refused for the rest of the window if it is not paired', async () => {
    await using member = await startMember(redis.url, { keys: COLD, settings });
    const device = someDevice();
    const attempts = await reconnect(device, 25, { isPaired: false, over: [member] });
    expect(attempts.filter(isAdmitted).length).toBe(20);
    expect(countOf(attempts, 'refused:flap')).toBe(5);
    const retryAfterMs = waitOf(attempts.at(-1));
    expect(retryAfterMs).toBeGreaterThan(290_000);
    await age(keysOf(device, COLD).flaps, 200_000);
    expect(countOf(await reconnect(device, 1, { isPaired: false, over: [member] }), 'refused:flap')).toBe(1);
    await age(keysOf(device, COLD).flaps, 100_000);
    expect((await reconnect(device, 1, { isPaired: false, over: [member] })).map(isAdmitted)).toEqual([true]);
  });

  it('cools down for 10 s at most if it is paired, as often as it takes', async () => {
    await using member = await startMember(redis.url, { keys: COLD, settings });
    const device = someDevice();
    await reconnect(device, 20, { over: [member] });
    for (let round = 0; round < 3; round++) {
      const [attempt] = await reconnect(device, 1, { over: [member] });
      expect(attempt?.decision).toMatchObject({ is: 'refused', reason: 'flap' });
      const retryAfterMs = waitOf(attempt);
      expect(retryAfterMs).toBeGreaterThan(8000);
      expect(retryAfterMs).toBeLessThanOrEqual(10_000);
      await age(keysOf(device, COLD).flaps, retryAfterMs);
      expect((await reconnect(device, 1, { over: [member] })).map(isAdmitted)).toEqual([true]);
    }
  });
});

describe.concurrent('the warm-up', () => {
  it('lets 20 reconnect on every member when another one starts, drains or was found dead', async () => {
    const keys = new Keys('warm:');
    const settings = { ...SETTINGS, flapMax: 0 };
    await using cold = await startMember(redis.url, { keys, settings });
    const admits = (count: number) =>
      eventually(async () => {
        const attempts = await reconnect(someDevice(), 21, { over: [cold] });
        expect(attempts.map(isAdmitted)).toEqual(Array.from(attempts, (_, n) => n < count));
        expect(outcome(attempts.at(-1) as Attempt)).toBe('refused:reconnect');
      });
    await admits(5);
    await using other = await startMember(redis.url, { keys, settings: { ...settings, warmupMs: 30_000 } });
    await admits(20);
    await admin.set(keys.warmUp, Date.now() - 1);
    await admits(5);
    await other.sessions.noteDrain();
    await admits(20);
    await admin.del(keys.warmUp);
    await admits(5);
    await other.sessions.buryProcess('somebody');
    await admits(20);
  });

  it('does not weaken the settle window', async () => {
    await using member = await startMember(redis.url, { keys: new Keys('both:') });
    const device = someDevice();
    await member.connect(device);
    expect(outcome(await member.connect(device))).toBe('refused:session_settle');
  });
});

describe.concurrent('before a token is proved', () => {
  it('forged ones that name a device are refused where they come from, and nowhere else', async () => {
    const [a, b] = members as [Member, Member];
    const [attacker, victim] = [someAddress(), someAddress()];
    const device = someDevice();
    for (let n = 0; n < 25; n++) (n % 2 ? a : b).sessions.noteRefusal(attacker, device.device);
    await eventually(async () => expect(await b.sessions.flapWait(attacker, device.device)).toBeGreaterThan(290_000));
    expect(await a.sessions.flapWait(attacker, device.device)).toBeGreaterThan(290_000);
    expect(await a.sessions.flapWait(victim, device.device)).toBe(0);
    expect(await a.sessions.flapWait(attacker, 'another')).toBe(0);
    expect(outcome(await b.connect(device))).toBe('admitted:admit');
    expect(await admin.llen(keysOf(device, COLD).flaps)).toBe(1);
    expect(await admin.llen(COLD.addressRefusals(attacker, device.device))).toBe(20);
  });

  it('looks change nothing, and unknown addresses and devices have no limit', async () => {
    const [a] = members as [Member];
    const address = someAddress();
    for (let n = 0; n < 30; n++) expect(await a.sessions.flapWait(address, 'seen')).toBe(0);
    for (let n = 0; n < 30; n++) {
      a.sessions.noteRefusal(undefined, 'seen');
      a.sessions.noteRefusal(address, undefined);
      a.sessions.noteRefusal(address, 'not\u0000a name');
    }
    for (const [from, claimed] of [
      [undefined, 'seen'],
      [address, undefined],
      [address, 'seen'],
      [address, 'not\u0000a name'],
    ] as const)
      expect(await a.sessions.flapWait(from, claimed)).toBe(0);
  });
});

describe.concurrent('connects of an address', () => {
  it('are 500 in 10 s on all members together; other addresses, and one that is not known, go on', async () => {
    const address = someAddress();
    const waits = await Promise.all(
      Array.from({ length: 540 }, (_, n) => (members[n % 3] as Member).sessions.connectWait(address)),
    );
    expect(waits.filter((ms) => ms === 0)).toHaveLength(500);
    expect(Math.max(...waits)).toBeLessThanOrEqual(10_000);
    const [a] = members as [Member];
    expect(await a.sessions.connectWait(someAddress())).toBe(0);
    for (let n = 0; n < 60; n++) expect(await a.sessions.connectWait(undefined)).toBe(0);
  });
});
