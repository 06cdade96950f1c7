import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DEFAULT_SESSION_SETTINGS, type DeviceOf } from '../../../src/admission/sessions/index.js';
import { Keys } from '../../../src/redis/keys.js';
import { eventually } from '../../harness/poll.js';
import { type RedisProcess, startRedis } from '../../harness/redis.js';
import {
  type Attempt,
  authoritative,
  isAdmitted,
  KEYS,
  keysOf,
  type Member,
  outcome,
  pause,
  someDevice,
  startMember,
  startMembers,
  Watcher,
  waitOf,
} from './rig.js';

const COLD = new Keys('cold:');

/** `count` connections of a device within `withinMs`, over the members in turn. */
async function storm(
  members: readonly Member[],
  device: DeviceOf,
  count: number,
  withinMs: number,
): Promise<Attempt[]> {
  const attempts: Promise<Attempt>[] = [];
  for (let n = 0; n < count; n++) {
    if (n > 0) await pause(withinMs / count);
    attempts.push((members[n % members.length] as Member).connect(device));
  }
  return Promise.all(attempts);
}

/** The device is held by exactly one of those who were let in, and was at every moment. */
function expectOneThroughout({ looks, seen, offline }: Watcher, attempts: readonly Attempt[]): void {
  const admitted = attempts.filter(isAdmitted).map(({ holder }) => holder.id);
  expect(authoritative(attempts).map(({ id }) => id)).toEqual([admitted.at(-1)]);
  expect(seen).toEqual(admitted);
  expect(offline).toBe(0);
  expect(looks).toBeGreaterThan(20);
}

/** @param pace of all times, against those of a real storm; 1 = as it was */
export function testStorms(pace: number): void {
  const settings = { settleMs: DEFAULT_SESSION_SETTINGS.settleMs * pace };
  let redis: RedisProcess;
  let warm: Member[];
  /** Nothing of theirs has a warm-up. */
  let cold: Member[];

  beforeAll(async () => {
    redis = await startRedis({ aof: 'off' });
    [warm, cold] = await Promise.all([
      startMembers(3, redis.url, { settings }),
      startMembers(3, redis.url, { keys: COLD, settings: { ...settings, warmupMs: 0 } }),
    ]);
  });

  afterAll(async () => {
    await Promise.all([...(warm ?? []), ...(cold ?? [])].map((member) => member[Symbol.asyncDispose]()));
    await redis?.[Symbol.asyncDispose]();
  });

  describe.concurrent.each([
    ['in the warm-up', () => warm, KEYS],
    ['outside it', () => cold, COLD],
  ])('%s', (_when, members, keys) => {
    it('8 sockets in 9 s, then 30 in 3 s, over 3 members leave one that was online throughout', async () => {
      const device = someDevice();
      const key = keysOf(device, keys).holder;
      await using watcher = new Watcher(redis.url, key);
      const attempts = [
        ...(await storm(members(), device, 8, 9000 * pace)),
        ...(await storm(members(), device, 30, 3000 * pace)),
      ];
      await eventually(() => expectOneThroughout(watcher, attempts));
      expect(attempts.filter(isAdmitted).map(outcome)).toEqual([
        'admitted:admit',
        'admitted:takeover',
        'admitted:takeover',
      ]);
      const refused = attempts.filter(({ decision }) => decision.is === 'refused');
      expect(new Set(refused.map(outcome))).toEqual(new Set(['refused:session_settle']));
      expect(Math.max(...attempts.map(({ ms }) => ms))).toBeLessThan(settings.settleMs + 1000);
    });

    it('two living connections that come again and again take the device from each other twice at most', async () => {
      const device = someDevice();
      const attempts: Attempt[] = [];
      const end = performance.now() + 11_000 * pace;
      for (let n = 0; performance.now() < end; n++) {
        attempts.push(await (members()[n % 2] as Member).connect(device));
        await pause(400 * pace);
      }
      const takeovers = attempts.filter((attempt) => outcome(attempt) === 'admitted:takeover');
      expect(takeovers).toHaveLength(2);
      await eventually(() => expect(authoritative(attempts)).toHaveLength(1));
    });

    it('one that is not paired is caught by a limit, and its device stays online', async () => {
      const device = someDevice();
      const key = keysOf(device, keys).holder;
      const first = await (members()[0] as Member).connect(device, { isPaired: false });
      await using watcher = new Watcher(redis.url, key);
      const attempts: Attempt[] = [];
      for (let n = 0; n < 40; n++)
        attempts.push(await (members()[n % 3] as Member).connect(device, { isPaired: false }));
      expect(attempts.at(-1)?.decision).toMatchObject({ is: 'refused', reason: 'flap' });
      expect(waitOf(attempts.at(-1))).toBeGreaterThan(280_000);
      expect([first.holder.evictions, watcher.offline]).toEqual([0, 0]);
      expect(watcher.seen).toEqual([first.holder.id]);
    });
  });

  describe.concurrent('the check of a storm', () => {
    it('notices a device that was offline for a moment', async () => {
      const device = someDevice();
      const key = keysOf(device).holder;
      await using watcher = new Watcher(redis.url, key);
      const admin = new Redis(redis.url);
      const first = storm(warm, device, 8, 1000);
      await pause(500);
      await eventually(async () => {
        await admin.del(key);
        return watcher.offline > 0;
      });
      admin.disconnect();
      const attempts = await first;
      expect(() => expectOneThroughout(watcher, attempts)).toThrow();
    });

    it('notices two members that do not know of each other', async () => {
      await using stranger = await startMember(redis.url, { keys: new Keys('elsewhere:') });
      const device = someDevice();
      const key = keysOf(device).holder;
      await using watcher = new Watcher(redis.url, key);
      const attempts = await storm([warm[0] as Member, stranger], device, 8, 800);
      expect(authoritative(attempts)).toHaveLength(2);
      expect(() => expectOneThroughout(watcher, attempts)).toThrow();
    });
  });
}
