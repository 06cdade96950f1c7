import { expect, it } from 'vitest';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { adminOf, idsInLog, outcomeOf, startPod } from './rig.js';

it('a hundred thousand small ones that wait are all told in time', async () => {
  await using redis = await startRedis();
  const admin = adminOf(redis.url);
  await using proxy = await startTcpProxy(redis.port);
  await using pod = await startPod('a', { url: `redis://127.0.0.1:${proxy.port}` });
  await proxy.refuse(true);
  proxy.rst();
  const outcomes = await Promise.all(Array.from({ length: 200_000 }, () => outcomeOf(pod.append('s', '1'))));
  expect(outcomes.filter(({ code }) => code === 'overloaded').length).toBeGreaterThan(50_000);
  expect(Math.max(...outcomes.slice(0, 1000).map(({ ms }) => ms))).toBeLessThan(30_000);
  await proxy.refuse(false);
  await eventually(async () => void (await pod.append('after')), { withinMs: 10_000 });
  expect(await idsInLog(admin)).toEqual(new Set(['after']));
  admin.disconnect();
});
