import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { eventually } from '../../harness/poll.js';
import { type RedisProcess, startRedis } from '../../harness/redis.js';
import { KEYS, keysOf, Member, outcome, someDevice, startMember } from './rig.js';

let redis: RedisProcess;
let admin: Redis;

beforeAll(async () => {
  redis = await startRedis({ aof: 'off' });
  admin = new Redis(redis.url);
});

afterAll(async () => {
  admin?.disconnect();
  await redis?.[Symbol.asyncDispose]();
});

it('start and stop are idempotent, in any order', async () => {
  const member = new Member(redis.url);
  await member.sessions.stop();
  await Promise.all([member.start(), member.sessions.start()]);
  await member.sessions.start();
  await Promise.all([member.sessions.stop(), member.sessions.stop()]);
  await member[Symbol.asyncDispose]();
});

it('a stop in the middle of a start ends what was started', async () => {
  for (let round = 0; round < 10; round++) {
    const member = new Member(redis.url);
    await member.pods.start();
    const starting = member.sessions.start();
    await member.sessions.stop();
    await starting;
    await member[Symbol.asyncDispose]();
  }
  await eventually(async () => expect(await admin.client('LIST')).not.toContain('holdfast:'));
});

it('lets go of what it still holds when it stops', async () => {
  const device = someDevice();
  const member = await startMember(redis.url);
  await member.connect(device);
  await member[Symbol.asyncDispose]();
  expect(await admin.hget(keysOf(device).holder, 'id')).toBe(null);
  await using other = await startMember(redis.url);
  expect(outcome(await other.connect(device))).toBe('admitted:admit');
});

it('leaves nothing in Redis that would stay', async () => {
  const keys = (await admin.keys(`${KEYS.prefix}*`)).filter((key) => /session|refused|connects/.test(key));
  expect(keys.length).toBeGreaterThan(0);
  for (const key of keys) expect(await admin.pttl(key)).toBeGreaterThan(0);
});
