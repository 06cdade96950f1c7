import { Redis } from 'ioredis';
import { expect, it } from 'vitest';
import { connect } from '../harness/client.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { httpPublish } from './http.js';

const EVENTS = 5000;

interface GroupInfo {
  readonly name: string;
  readonly lag: number | null;
}

async function groupOf(redis: Redis, name: string): Promise<GroupInfo | undefined> {
  const groups = (await redis.xinfo('GROUPS', 'hf:{events.0}:s')) as unknown[];
  return groups
    .map((group) => (Array.isArray(group) ? Object.fromEntries(pairs(group)) : group) as GroupInfo)
    .find((group) => group.name === name);
}

function pairs(flat: readonly unknown[]): [string, unknown][] {
  return Array.from({ length: flat.length / 2 }, (_, n) => [String(flat[2 * n]), flat[2 * n + 1]]);
}

for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
  it.concurrent(`a pod gets all that was written while it was away after ${signal}, from its group's offset`, async () => {
    await using redis = await startRedis({ aof: 'everysec' });
    await using a = await startPod({ redisUrl: redis.url, name: 'a', env: { HOLDFAST_DRAIN_MS: '500' } });
    await using b = await startPod({ redisUrl: redis.url, name: 'b' });
    const admin = new Redis(redis.url, { protocol: 2 });
    await using client = await connect(a.url, { token: await token({ sub: 'reader', caps: ALL_CAPS }) });
    try {
      await client.subscribe('news');
      await httpPublish(b.url, { room: 'news', event: 'first', data: 0, id: 'first' });
      await eventually(() => client.received.length === 1, { what: 'the first event' });
      if (signal === 'SIGTERM') expect(await a.sigterm()).toMatchObject({ code: 0 });
      else await a.sigkill();
      for (let n = 0; n < EVENTS; n += 100) {
        const list = Array.from({ length: 100 }, (_, k) => ({
          room: 'news',
          event: 'tick',
          data: n + k,
          id: `tick-${n + k}`,
        }));
        const { status, body } = await httpPublish(b.url, list);
        expect(status).toBe(200);
        expect(body.results?.every(({ ok }) => ok)).toBe(true);
      }
      expect(await groupOf(admin, 'pod:a')).toMatchObject({ lag: EVENTS });
      await a.start();
      await eventually(async () => (await groupOf(admin, 'pod:a'))?.lag === 0, {
        what: 'the lag to fall to 0',
        withinMs: 15_000,
      });
      await eventually(() => client.received.length >= EVENTS + 1, { what: 'all events', withinMs: 15_000 });
      const ticks = client.received.slice(1).map(({ data }) => data);
      expect(ticks).toEqual(Array.from({ length: EVENTS }, (_, n) => n));
      expect(client.connects.at(-1)).toMatchObject({ recovered: true });
      expect(client.gaps).toEqual([]);
    } finally {
      admin.disconnect();
    }
  });
}
