import { expect, it } from 'vitest';
import { connect } from '../harness/client.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';

it('a large event on a slow link is no reason to close its reader, whatever goes beside the log meanwhile', async () => {
  await using redis = await startRedis({ aof: 'off' });
  await using pod = await startPod({
    redisUrl: redis.url,
    name: 'a',
    env: { HOLDFAST_GATEWAY_MAX_PAYLOAD_BYTES: '16000000', HOLDFAST_GATEWAY_SLOW_READER_MS: '30s' },
  });
  await using proxy = await startTcpProxy(pod.port);
  const jwt = await token({ sub: 'u', caps: ALL_CAPS });
  await using reader = await connect(`http://127.0.0.1:${proxy.port}`, { token: jwt });
  await using writer = await connect(pod.url, { token: jwt, ackMs: 20_000 });
  await reader.subscribe('news');
  await writer.subscribe('news');
  proxy.blackhole(true);
  expect(
    await writer.publish({ room: 'news', event: 'large', data: 'x'.repeat(15_000_000), id: 'large' }),
  ).toMatchObject({
    ok: true,
  });
  await eventually(() => writer.received.length === 1, {
    what: 'the large event on a link that is read',
    withinMs: 20_000,
  });
  for (let n = 0; n < 5; n++) await writer.publish({ room: 'news', event: 'typing', ephemeral: true });
  await eventually(() => writer.received.length === 6, { what: 'the ephemeral events on a link that is read' });
  proxy.blackhole(false);
  await eventually(() => reader.received.some(({ meta }) => meta.id === 'large'), {
    what: 'the large event',
    withinMs: 20_000,
  });
  expect(reader.control).toEqual([]);
  expect(reader.disconnects).toEqual([]);
});
