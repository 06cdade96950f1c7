import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Redis } from 'ioredis';
import { expect } from 'vitest';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import type { Group } from './scenario.js';

export const REFUSALS: Group = {
  name: 'a Redis that does not serve',
  stage: { redis: { config: { dbfilename: 'copy.rdb' } } },
  scenarios: [
    {
      name: 'a Redis that stands still (SIGSTOP)',
      lastsMs: { short: 3000, long: 10_000 },
      inject: async ({ redis }) => redis.pause(),
      heal: async ({ redis }) => redis.resume(),
      expects: { hears: 'mayHaveHappened' },
    },
    {
      name: 'a full one (maxmemory 1)',
      lastsMs: { short: 3500, long: 20_000 },
      async inject({ admin }) {
        await admin.config('SET', 'maxmemory', '1');
        await expect(admin.set('any', '1')).rejects.toThrow('OOM');
      },
      async heal({ admin }) {
        await admin.config('SET', 'maxmemory', '0');
      },
      expects: { hears: 'unavailable' },
    },
    {
      name: 'one that cannot save its data (MISCONF)',
      lastsMs: { short: 2500, long: 20_000 },
      async inject({ admin }) {
        await admin.config('SET', 'save', '3600 1000000');
        await mkdir(await copyOf(admin));
        await admin.bgsave();
        await eventually(async () => expect(admin.set('any', '1')).rejects.toThrow('MISCONF'));
      },
      async heal({ admin }) {
        await rm(await copyOf(admin), { recursive: true });
        await admin.config('SET', 'save', '');
        await admin.save();
      },
      expects: { hears: 'unavailable' },
    },
    {
      name: 'a master that is demoted, and master again (READONLY)',
      lastsMs: { short: 3000, long: 20_000 },
      async inject({ admin }) {
        // of nobody, so that its data stay
        await admin.replicaof('127.0.0.1', await freePort());
        await expect(admin.set('any', '1')).rejects.toThrow('READONLY');
      },
      async heal({ admin }) {
        await admin.replicaof('NO', 'ONE');
      },
      expects: { hears: 'refusals' },
    },
  ],
};

async function copyOf(admin: Redis): Promise<string> {
  const [, dir] = (await admin.config('GET', 'dir')) as [string, string];
  return join(dir, 'copy.rdb');
}
