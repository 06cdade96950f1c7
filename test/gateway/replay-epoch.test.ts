import { Redis } from 'ioredis';
import { expect, it } from 'vitest';
import { httpPublish } from '../acceptance/http.js';
import { connect } from '../harness/client.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';

/** Together more than the kernel keeps of a link that nobody reads. */
const EVENTS = 30;
const DATA = 'x'.repeat(900_000);

it('a replay that meets a new epoch on its way is no subscription, and the next one brings what is new', async () => {
  await using redis = await startRedis({ aof: 'off' });
  await using pod = await startPod({
    redisUrl: redis.url,
    name: 'a',
    env: { HOLDFAST_GATEWAY_SLOW_READER_MS: '30s', HOLDFAST_GATEWAY_PING_TIMEOUT_MS: '60s' },
  });
  await using proxy = await startTcpProxy(pod.port);
  await using client = await connect(`http://127.0.0.1:${proxy.port}`, {
    token: await token({ sub: 'u', caps: ALL_CAPS }),
    ackMs: 30_000,
  });
  const admin = new Redis(redis.url);
  const publish = async (event: object): Promise<string> => {
    const { status, body } = await httpPublish(pod.url, { room: 'news', event: 'tick', ...event });
    expect(status).toBe(200);
    return body.position as string;
  };
  const from = await publish({ id: 'first' });
  for (let n = 0; n < EVENTS; n++) await publish({ id: `old-${n}`, data: DATA });
  const subscribing = client.subscribe('news', from);
  await eventually(() => client.received.length > 0, { what: 'the replay to begin' });
  proxy.blackhole(true);
  await admin.flushall();
  const epochs = async (): Promise<number> => {
    const metrics = await pod.metrics();
    return [...metrics]
      .filter(([series]) => series.startsWith('holdfast_log_epochs_total'))
      .reduce((sum, [, n]) => sum + n, 0);
  };
  await eventually(async () => (await epochs()) > 0, { what: 'the new epoch' });
  proxy.blackhole(false);
  expect(await subscribing).toMatchObject({ ok: false, code: 'unavailable', retryable: true });
  expect(await client.subscribe('news')).toMatchObject({ ok: true });
  for (const id of ['new-1', 'new-2']) await eventually(() => publish({ id }).then(() => true), { what: id });
  await eventually(() => client.received.at(-1)?.meta.id === 'new-2', { what: 'what is new', withinMs: 10_000 });
  expect(client.received.slice(-2).map(({ meta }) => meta.id)).toEqual(['new-1', 'new-2']);
  admin.disconnect();
});
