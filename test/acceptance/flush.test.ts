import { Redis } from 'ioredis';
import { expect, it } from 'vitest';
import { connect } from '../harness/client.js';
import { cpuSeconds } from '../harness/cpu.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { httpPublish } from './http.js';

it('after FLUSHALL clients are told of the gap within 5 s, live delivery goes on, and nobody spins', async () => {
  await using redis = await startRedis();
  await using a = await startPod({ redisUrl: redis.url, name: 'a' });
  await using b = await startPod({ redisUrl: redis.url, name: 'b' });
  const jwt = await token({ sub: 'u', caps: ALL_CAPS });
  await using onA = await connect(a.url, { token: jwt });
  await using onB = await connect(b.url, { token: jwt });
  const clients = [onA, onB];
  for (const client of clients) await client.subscribe('news');
  let sent = 0;
  const publish = async (pod: { url: string }): Promise<void> => {
    const id = `event-${sent++}`;
    await eventually(async () => (await httpPublish(pod.url, { room: 'news', event: 'tick', id })).status === 200, {
      what: `${id} to be accepted`,
    });
  };
  for (let n = 0; n < 40; n++) await publish(n % 2 ? a : b);
  await eventually(() => clients.every(({ received }) => received.length === 40), { what: 'the first events' });

  const admin = new Redis(redis.url);
  const flushedAt = Date.now();
  const [cpu, lines] = [await cpuSeconds(a.pid), a.logs.length];
  await admin.flushall();
  await eventually(() => clients.every(({ gaps }) => gaps.length > 0), {
    what: 'the gap at every client',
    withinMs: 5000,
  });
  for (let n = 0; n < 40; n++) await publish(n % 2 ? a : b);
  await eventually(() => clients.every(({ received }) => received.length === 80), {
    what: 'the events after it',
    withinMs: 5000,
  });
  for (const { received, gaps } of clients) {
    expect(received.map(({ meta }) => meta.id)).toEqual(Array.from({ length: 80 }, (_, n) => `event-${n}`));
    expect(gaps).toHaveLength(1);
    expect(gaps[0]).toMatchObject({ reason: 'epoch' });
  }

  // resume records of living sockets were written again: a cut cable still resumes
  onA.cut();
  await publish(b);
  await eventually(() => onA.received.length === 81 && onA.connects.length === 2, { what: 'the resumed client' });
  expect(onA.connects.at(-1)).toMatchObject({ recovered: true });

  await eventually(() => Date.now() - flushedAt > 4000, { what: 'a while', withinMs: 10_000 });
  const seconds = (Date.now() - flushedAt) / 1000;
  expect((await cpuSeconds(a.pid)) - cpu).toBeLessThan(0.5 * seconds);
  expect(a.logs.length - lines).toBeLessThanOrEqual(seconds);
  admin.disconnect();
});
