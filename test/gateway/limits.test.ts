import { io } from 'socket.io-client';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { connect, open } from '../harness/client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { ask, dataOf, join, publish, type Stack, someone, startStack } from './fixture.js';
import { RawClient } from './raw-client.js';

const GOOD = 'https://app.example.com';
let stack: Stack;
let pod: Pod;

beforeAll(async () => {
  const env = {
    HOLDFAST_GATEWAY_ORIGINS: GOOD,
    HOLDFAST_GATEWAY_MESSAGES_PER_SECOND: '40',
    HOLDFAST_GATEWAY_PUBLISHES_PER_SECOND: '10',
    HOLDFAST_GATEWAY_POSITION_HEARTBEAT_MS: '2s',
  };
  stack = await startStack(1, { env });
  pod = stack.pod(0);
});
afterAll(() => stack?.stop());

test('who sends too much is told so and when to go on, and stays connected', async () => {
  await using client = await join(pod);
  const room = someone('room');
  const publishing = await Promise.all(Array.from({ length: 40 }, () => client.publish({ room, event: 'e' })));
  const refused = publishing.filter(({ ok }) => !ok);
  expect(refused.length).toBeGreaterThanOrEqual(10);
  expect(publishing.filter(({ ok }) => ok).length).toBeGreaterThanOrEqual(20);
  for (const ack of refused)
    expect(ack).toMatchObject({ code: 'too_many_requests', retryable: true, retryAfterMs: expect.any(Number) });
  const asking = await Promise.all(Array.from({ length: 200 }, () => client.unsubscribe(room)));
  expect(asking.filter(({ ok }) => !ok).length).toBeGreaterThan(50);
  await eventually(async () => (await client.publish({ room, event: 'e' })).ok);
  expect(client.disconnects).toEqual([]);
});

test.concurrent('an idle socket hears its position again and again, and it is where others publish', async () => {
  await using client = await connect(pod.url, { token: await token({ sub: someone() }) });
  await eventually(() => client.positions.length >= 1);
  const positions = await publish(pod, someone('elsewhere'), [1, 2, 3]);
  await eventually(() => client.positions.at(-1) === positions[2], { withinMs: 8000, what: 'a newer position' });
  const count = client.positions.length;
  await eventually(() => client.positions.length >= count + 2, { withinMs: 12_000 });
});

test.concurrent('a browser from another origin is refused, and what is no browser is not asked', async () => {
  const auth = { token: await token({ sub: someone() }) };
  for (const origin of ['https://evil.example.com', 'null', `${GOOD}.evil.com`, GOOD.replace('https', 'http')]) {
    await using client = new RawClient(pod.port, { headers: { origin } });
    await client.closed();
    expect(client.head, origin).toMatch(/^HTTP\/1.1 (400|403)/);
  }
  for (const headers of [{}, { origin: GOOD }] as Record<string, string>[]) {
    await using client = new RawClient(pod.port, { headers });
    expect((await client.open(auth)).sid).toBeTruthy();
  }
});

test.concurrent('a polling client gets one clear answer', async () => {
  const response = await fetch(`${pod.url}/socket.io/?EIO=4&transport=polling`);
  expect(response.status).toBe(403);
  expect(await response.text()).toContain("connect with { transports: ['websocket'] }");
  const client = io(pod.url, { transports: ['polling'], reconnection: false });
  const error = await new Promise<Error & { description?: number }>((resolve) => client.on('connect_error', resolve));
  expect(error.description).toBe(403);
  client.disconnect();
});

test.concurrent('other doors of Engine.IO are closed politely', async () => {
  for (const path of [
    '/socket.io/?EIO=3&transport=websocket',
    '/socket.io/?EIO=4&transport=websocket&sid=nobody',
    '/socket.io/?EIO=4&transport=x',
    '/other/?EIO=4&transport=websocket',
  ]) {
    await using client = new RawClient(pod.port, { path });
    await eventually(() => client.isClosed || /^HTTP\/1.1 4/.test(client.head), { withinMs: 15_000, what: path });
    expect(client.texts.filter((text) => text.startsWith('0'))).toEqual([]);
  }
});

test('gauges are exactly zero and the number of series is what it was, after refusals, resets, takeovers and goodbyes', async () => {
  await eventually(async () => (await pod.metrics()).get('holdfast_connections') === 0);
  const before = await pod.metrics();
  const sum = (metrics: Map<string, number>, name: string): number =>
    [...metrics].reduce((total, [series, value]) => (series.startsWith(name) ? total + value : total), 0);
  const good = await token({ sub: someone(), caps: ALL_CAPS });
  const work: (() => Promise<void>)[] = [];
  for (let index = 0; index < 60; index++) {
    work.push(
      async () => {
        await using refused = new RawClient(pod.port);
        await refused.open({ token: `bad-${index}` });
      },
      async () => {
        await using origin = new RawClient(pod.port, { headers: { origin: `https://evil-${index}.example.com` } });
        await origin.closed();
      },
      async () => {
        const reset = new RawClient(pod.port);
        await reset.next(/^0/);
        reset.send(`40${JSON.stringify({ token: good })}`);
        await reset.stop();
      },
      async () => {
        const early = new RawClient(pod.port);
        await early.stop();
      },
      async () => {
        const left = new RawClient(pod.port);
        const { pid } = await left.open({ token: good });
        await using taker = new RawClient(pod.port);
        await taker.open({ token: good, pid });
        await left.closed();
        taker.send(`42["${`event-${index}`}",{"room":"room-${index}"}]`);
        taker.send('41');
      },
      async () => {
        await using clean = await connect(pod.url, { token: good });
        await clean.subscribe(`room-${index}`);
        await clean.publish({ room: `room-${index}`, event: `event-${index}` });
      },
    );
  }
  // some at a time: ports are many, this machine's cores are two
  for (let from = 0; from < work.length; from += 40) await Promise.all(work.slice(from, from + 40).map((run) => run()));
  for (let index = 0; index < 50; index++) await ask(pod, 'GET', `/v1/history/room-${index}`);

  await eventually(
    async () => {
      const metrics = await pod.metrics();
      expect(metrics.get('holdfast_connections')).toBe(0);
      expect(metrics.get('holdfast_slow_consumers_behind')).toBe(0);
      const accepted =
        sum(metrics, 'holdfast_connections_accepted_total') - sum(before, 'holdfast_connections_accepted_total');
      const ended = sum(metrics, 'holdfast_disconnects_total') - sum(before, 'holdfast_disconnects_total');
      expect(ended).toBe(accepted);
      const refused = (name: string): number => {
        const series = `holdfast_connections_refused_total{reason="${name}"}`;
        return (metrics.get(series) ?? 0) - (before.get(series) ?? 0);
      };
      expect(refused('unauthorized')).toBe(60);
      expect(refused('origin')).toBe(60);
      // two sockets of each takeover, one of each goodbye, and of the resets those that came through in time
      expect(accepted).toBeGreaterThanOrEqual(180);
      expect(accepted + refused('aborted')).toBeLessThanOrEqual(240);
    },
    { withinMs: 15_000, what: 'the gauges to be zero' },
  );
  const after = await pod.metrics();
  const names = (metrics: Map<string, number>): string[] =>
    [...metrics.keys()].filter((name) => name.startsWith('holdfast_'));
  expect(names(after)).toEqual(names(before));
  expect(names(after).join()).not.toMatch(/room-|event-|user-|evil/);
});

test('150 stock clients at once, and a client whose first connection fails, are all served', async () => {
  const room = someone('room');
  const good = await token({ sub: someone(), caps: ALL_CAPS });
  const clients = Array.from({ length: 150 }, () => open(pod.url, { token: good }));
  for (const client of clients) await client.connected(30_000);
  const lines = pod.logs.length;
  await Promise.all(clients.map((client) => client.subscribe(room)));
  await publish(pod, room, ['all']);
  await eventually(() => clients.every((client) => dataOf(client).includes('all')), { withinMs: 15_000 });
  await Promise.all(clients.map((client) => client.stop()));
  expect(pod.logs.length - lines).toBeLessThan(20);
});
