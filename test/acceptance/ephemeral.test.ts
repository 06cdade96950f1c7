import { Redis } from 'ioredis';
import { expect, it } from 'vitest';
import { connect } from '../harness/client.js';
import { cpuSeconds } from '../harness/cpu.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { httpPublish } from './http.js';

const PER_SECOND = 5000;
const SECONDS = 4;

it('ephemeral events to rooms without members enter no log and cost no pod but their publisher', async () => {
  await using redis = await startRedis();
  await using publisher = await startPod({ redisUrl: redis.url, name: 'publisher' });
  await using other = await startPod({ redisUrl: redis.url, name: 'other' });
  await using idle = await connect(other.url, { token: await token({ sub: 'idle', caps: ALL_CAPS }) });
  await idle.subscribe('somewhere-else');
  const admin = new Redis(redis.url);
  const second = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 1000));

  // what an idle pod costs in the same time, on this machine, now
  const restingFrom = await cpuSeconds(other.pid);
  for (let n = 0; n < SECONDS; n++) await second();
  const resting = (await cpuSeconds(other.pid)) - restingFrom;

  const [busyFrom, publisherFrom] = [await cpuSeconds(other.pid), await cpuSeconds(publisher.pid)];
  const startedAt = performance.now();
  let sent = 0;
  while (sent < PER_SECOND * SECONDS) {
    const due = Math.min(PER_SECOND * SECONDS, ((performance.now() - startedAt) / 1000) * PER_SECOND);
    const lists: Promise<unknown>[] = [];
    for (; sent + 100 <= due; sent += 100) {
      const list = Array.from({ length: 100 }, (_, n) => ({
        room: `typing-${(sent + n) % 500}`,
        event: 'typing',
        ephemeral: true,
      }));
      lists.push(httpPublish(publisher.url, list));
    }
    await Promise.all(lists);
    if (lists.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  }
  const busy = (await cpuSeconds(other.pid)) - busyFrom;
  console.log(JSON.stringify({ sent, resting, busy, publisher: (await cpuSeconds(publisher.pid)) - publisherFrom }));
  expect(await admin.xlen('hf:{events.0}:s')).toBe(0);
  // 20,000 messages would cost a pod that hears them hundreds of ms
  expect(busy).toBeLessThan(resting + 0.15);

  // the control: with a member they do arrive, and without a position
  await httpPublish(publisher.url, { room: 'somewhere-else', event: 'typing', data: 1, ephemeral: true });
  await eventually(() => idle.received.length === 1, { what: 'the ephemeral event' });
  expect(idle.received[0]).toMatchObject({ event: 'typing', data: 1, position: undefined });
  admin.disconnect();
});
