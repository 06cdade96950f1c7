import { Redis } from 'ioredis';
import { expect } from 'vitest';
import { eventually } from '../harness/poll.js';
import type { RedisProcess } from '../harness/redis.js';
import { growth } from '../log/growth.js';
import type { Group } from './scenario.js';
import { KEYS, type Stage } from './stage.js';

/** What is accepted meanwhile is in Redis and not yet read by the second pod when `work` happens. */
async function whileOnePodLags({ admin, proxies: [, second] }: Stage, work: () => Promise<unknown>): Promise<void> {
  second?.holdRequests(true);
  // the read that waits inside Redis brings the first of them, and whatever is appended with it
  await growth(admin);
  await growth(admin, 4);
  await work();
  second?.holdRequests(false);
}

export const VANISHING: Group = {
  name: 'what Redis holds',
  stage: {
    // an empty Redis would load in no time
    redis: { config: { 'key-load-delay': '4000', 'loading-process-events-interval-bytes': '1024' } },
  },
  scenarios: [
    {
      name: 'XGROUP DESTROY of every pod',
      perSecond: 20,
      async inject({ admin, pods }) {
        for (const { name } of pods) expect(await admin.xgroup('DESTROY', KEYS.stream, `pod:${name}`)).toBe(1);
      },
      // a group is only a cursor: nothing is lost, so a gap would be false
      expects: {
        hears: 'nothing',
        counts: (rise) => expect(rise('holdfast_log_group_seats_total')).toBeGreaterThan(0),
      },
    },
    {
      name: 'DEL of the stream, with entries that one pod has not read',
      perSecond: 20,
      inject: (stage) => whileOnePodLags(stage, async () => expect(await stage.admin.del(KEYS.stream)).toBe(1)),
      expects: { epoch: ['deleted'], hears: 'nothing', losesUnread: 'counted' },
    },
    {
      name: 'FLUSHALL, with entries that one pod has not read',
      perSecond: 20,
      inject: (stage) => whileOnePodLags(stage, () => stage.admin.flushall()),
      expects: { epoch: ['new'], hears: 'nothing', losesUnread: 'unknown' },
    },
    {
      name: 'a fall-back to an older copy of the data',
      async inject({ admin, redis }) {
        await admin.save();
        const copied = await admin.xlen(KEYS.stream);
        await eventually(async () => (await admin.xlen(KEYS.stream)) > copied + 20, { what: 'what will be forgotten' });
        await redis.restart();
      },
      expects: { epoch: ['behind', 'forked'], hears: 'anything' },
    },
    {
      name: 'a restart with much to load (LOADING)',
      async inject({ admin, redis }, form) {
        const keys = form === 'short' ? 700 : 3000;
        for (let n = 0; n < keys; n++) void admin.set(`filler:${n}`, 'x'.repeat(2048));
        await admin.ping();
        await shutDown(redis);
        const starting = redis.start();
        await eventually(async () => (await refusalOf(redis)).startsWith('LOADING'), { what: 'LOADING' });
        await starting;
      },
      expects: { hears: 'refusals' },
    },
  ],
};

/** Saves what it has, and ends. */
async function shutDown(redis: RedisProcess): Promise<void> {
  // one that reconnects would send it again
  const client = new Redis(redis.url, { retryStrategy: () => null, maxRetriesPerRequest: 0 });
  client.on('error', () => {});
  await client.call('SHUTDOWN', 'SAVE').catch(() => {});
  client.disconnect();
  await redis.kill();
}

/** What Redis answers to a read, if it is an error. */
async function refusalOf({ url }: RedisProcess): Promise<string> {
  const client = new Redis(url, { retryStrategy: () => null, enableReadyCheck: false, maxRetriesPerRequest: 0 });
  client.on('error', () => {});
  const refusal = await client.get('any').then(
    () => '',
    (error: Error) => error.message,
  );
  client.disconnect();
  return refusal;
}
