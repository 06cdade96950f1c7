import { expect, it } from 'vitest';
import { connect } from '../harness/client.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { runIdle } from './idle.js';

const PING = { HOLDFAST_GATEWAY_PING_INTERVAL_MS: '1000', HOLDFAST_GATEWAY_PING_TIMEOUT_MS: '1000' };

it('pings keep an idle socket up behind a balancer that cuts what is silent', async () => {
  const options = { tunnelTimeout: '3s', idleMs: 8000 };
  const slow = { HOLDFAST_GATEWAY_PING_INTERVAL_MS: '20000' };
  const [cuts, cutsOfControl] = await Promise.all([
    runIdle({ ...options, env: PING }),
    // such a balancer does cut a tunnel that is silent for longer
    runIdle({ ...options, env: slow }),
  ]);
  expect(cuts).toBe(0);
  expect(cutsOfControl).toBeGreaterThan(0);
});

it('both ends notice a link that a balancer dropped silently within ping interval and time-out', async () => {
  await using redis = await startRedis();
  await using pod = await startPod({ redisUrl: redis.url, name: 'a', env: PING });
  await using proxy = await startTcpProxy(pod.port);
  await using client = await connect(`http://127.0.0.1:${proxy.port}`, {
    token: await token({ sub: 'u', caps: ALL_CAPS }),
  });
  const connections = async (): Promise<number | undefined> => (await pod.metrics()).get('holdfast_connections');
  expect(await connections()).toBe(1);
  proxy.blackhole(true);
  await eventually(() => client.disconnects.length > 0, { what: 'the client to notice', withinMs: 3500 });
  await eventually(async () => (await connections()) === 0, { what: 'the pod to notice', withinMs: 3500 });
  proxy.blackhole(false);
  await eventually(() => client.socket.connected, { what: 'the client to be back', withinMs: 10_000 });
});
