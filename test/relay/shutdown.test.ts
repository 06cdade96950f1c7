import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http';
import { connect as connectTcp, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { type Client, connect } from '../harness/client.js';
import { startHaproxy } from '../harness/haproxy.js';
import { type Pod, startPod, TEST_API_KEY } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';

let redis: RedisProcess;
let jwt: string;
beforeAll(async () => {
  redis = await startRedis();
  jwt = await token({ sub: 'ann', caps: ALL_CAPS });
});
afterAll(() => redis?.stop());

let prefixes = 0;
const fresh = (): Record<string, string> => ({ HOLDFAST_REDIS_PREFIX: `t${prefixes++}:` });

/** Asks for readiness until the pod is gone: the codes that it answered with, in order. */
async function readinessUntilExit(pod: Pod): Promise<number[]> {
  const codes: number[] = [];
  while (pod.isRunning) {
    const response = await fetch(`${pod.opsUrl}/_readiness`, { signal: AbortSignal.timeout(2000) }).catch(
      () => undefined,
    );
    if (response) codes.push(response.status);
    await sleep(50);
  }
  return codes;
}

function publish(url: string, room: string, id: string): Promise<Response> {
  return fetch(`${url}/v1/publish`, {
    method: 'POST',
    headers: { authorization: `Bearer ${TEST_API_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify({ room, event: 'tick', id }),
  });
}

async function connectMany(url: string, count: number): Promise<Client[] & AsyncDisposable> {
  const clients = await Promise.all(Array.from({ length: count }, () => connect(url, { token: jwt })));
  return Object.assign(clients, {
    [Symbol.asyncDispose]: async () => void (await Promise.all(clients.map((client) => client.stop()))),
  });
}

// these wait more than they work
describe.concurrent('SIGTERM', () => {
  it('sends clients to another pod, which gives them what they missed; not ready at once, serving for a while', async () => {
    const env: Record<string, string> = { ...fresh(), HOLDFAST_DRAIN_MS: '6000' };
    const starting = ['pod-a', 'pod-b'].map((name) => startPod({ redisUrl: redis.url, name, env }));
    await using a = await (starting[0] as Promise<Pod>);
    await using b = await (starting[1] as Promise<Pod>);
    await using balancer = await startHaproxy({
      backends: [a, b].map(({ port, opsPort }) => ({ host: '127.0.0.1', port, opsPort })),
    });
    await eventually(async () => expect(await balancer.up()).toEqual([true, true]), { withinMs: 10_000 });
    await using clients = await connectMany(balancer.url, 8);
    for (const client of clients) await client.subscribe('news');
    const onA = (await a.metrics()).get('holdfast_connections');
    expect(onA).toBeGreaterThan(0);

    const codes = readinessUntilExit(a);
    const exit = a.sigterm();
    await eventually(async () => expect((await fetch(`${a.opsUrl}/_readiness`)).status).toBe(503));
    // the routing delay: balancers don't know yet, so who comes is served
    expect((await fetch(`${a.url}/health`)).status).toBe(200);
    expect((await publish(a.url, 'news', 'during')).status).toBe(200);
    await using late = await connect(a.url, { token: jwt, reconnectionDelayMs: 60_000 });
    expect((await a.metrics()).get('holdfast_ready')).toBe(0);
    for (let n = 0; a.isRunning; n++) {
      expect((await publish(b.url, 'news', `n${n}`)).status).toBe(200);
      await sleep(100);
    }
    expect(await exit).toEqual({ code: 0, signal: null });
    expect((await publish(b.url, 'news', 'last')).status).toBe(200);

    const ids = new Set<string>();
    for (const client of clients)
      await eventually(() => client.received.at(-1)?.meta.id === 'last', { withinMs: 15_000, what: 'the last event' });
    const moved = clients.filter(({ disconnects }) => disconnects.length > 0);
    expect(moved).toHaveLength(onA as number);
    for (const client of moved) {
      expect(client.disconnects.map(({ reason }) => reason)).toEqual(['transport close']);
      expect(client.control).toContainEqual({ event: 'holdfast:drain', args: [{ reconnectInMs: expect.any(Number) }] });
      expect(client.connects.at(-1)?.recovered).toBe(true);
    }
    await eventually(() => late.disconnects.length === 1);
    expect(late.disconnects.map(({ reason }) => reason)).toEqual(['transport close']);
    for (const client of clients) {
      const got = client.received.map(({ meta }) => meta.id);
      expect(new Set(got).size).toBe(got.length);
      expect(client.gaps).toEqual([]);
      for (const id of got) ids.add(id);
    }
    for (const client of clients) expect(new Set(client.received.map(({ meta }) => meta.id))).toEqual(ids);
    const told = await codes;
    const turn = told.indexOf(503);
    expect(turn).toBeGreaterThanOrEqual(0);
    expect(new Set(told.slice(turn))).toEqual(new Set([503]));
    const client = new Redis(redis.url);
    expect(await client.zcard(`${env.HOLDFAST_REDIS_PREFIX}{pods}:processes`)).toBe(1);
    client.disconnect();
  });

  it('waits for no peer: sockets, idle links, a half-sent request; a request in hand gets its answer; a second one hurries', async () => {
    await using pod = await startPod({
      redisUrl: redis.url,
      name: 'pod-a',
      env: { ...fresh(), HOLDFAST_DRAIN_MS: '60s' },
    });
    await using clients = await connectMany(pod.url, 50);
    const agent = new Agent({ keepAlive: true, maxSockets: 5 });
    const ok = (): Promise<unknown> =>
      new Promise((resolve, reject) =>
        request(`${pod.url}/health`, { agent }, (response) => void text(response).then(resolve, reject))
          .on('error', reject)
          .end(),
      );
    await Promise.all(Array.from({ length: 5 }, ok));
    const halfSent: Socket = connectTcp(pod.port, '127.0.0.1');
    halfSent.on('error', () => {});
    halfSent.write('POST /v1/publish HTTP/1.1\r\nhost: x\r\n');
    const slow = slowPublish(pod.url);

    const exit = pod.sigterm();
    const startedAt = performance.now();
    await sleep(1000);
    expect(clients.every(({ disconnects }) => disconnects.length === 0)).toBe(true);
    process.kill(pod.pid, 'SIGTERM');
    await sleep(1000);
    slow.finish();
    expect((await slow.answer).statusCode).toBe(200);
    expect(await exit).toEqual({ code: 0, signal: null });
    expect(performance.now() - startedAt).toBeLessThan(25_000);
    await wereToldToLeave(clients);
    agent.destroy();
    halfSent.destroy();
  });

  it('that comes twice within a moment, as from npm, is one', async () => {
    await using pod = await startPod({
      redisUrl: redis.url,
      name: 'pod-a',
      env: { ...fresh(), HOLDFAST_DRAIN_MS: '3s' },
    });
    const startedAt = performance.now();
    const exit = pod.sigterm();
    process.kill(pod.pid, 'SIGINT');
    expect(await exit).toEqual({ code: 0, signal: null });
    // the routing delay was not cut short
    expect(performance.now() - startedAt).toBeGreaterThan(900);
  });

  it.each(['killed', 'hung'] as const)('ends cleanly with a Redis that was %s before', async (how) => {
    await using own = await startRedis();
    await using pod = await startPod({ redisUrl: own.url, name: 'pod-a', env: { HOLDFAST_DRAIN_MS: '1s' } });
    await using clients = await connectMany(pod.url, 10);
    if (how === 'killed') await own.kill();
    else own.pause();
    await eventually(() => pod.logs.some((line) => line.includes('"redis_down"')), { withinMs: 15_000 });
    await endsCleanly(pod, clients);
  });

  it('ends cleanly with a Redis that hangs a second later', async () => {
    await using own = await startRedis();
    await using pod = await startPod({ redisUrl: own.url, name: 'pod-a', env: { HOLDFAST_DRAIN_MS: '4s' } });
    await using clients = await connectMany(pod.url, 10);
    setTimeout(() => own.pause(), 1000);
    await endsCleanly(pod, clients);
  });
});

/** By an event, and then by the end of the transport, after which a stock client comes back by itself. */
async function wereToldToLeave(clients: readonly Client[]): Promise<void> {
  for (const { disconnects, control } of clients) {
    await eventually(() => disconnects.length > 0, { what: 'the end of the transport' });
    expect(disconnects[0]?.reason).toBe('transport close');
    const told = control.map(({ event }) => event).filter((event) => event !== 'presence');
    expect(told).toEqual(['holdfast:drain']);
  }
}

async function endsCleanly(pod: Pod, clients: readonly Client[]): Promise<void> {
  const startedAt = performance.now();
  expect(await pod.sigterm()).toEqual({ code: 0, signal: null });
  expect(performance.now() - startedAt).toBeLessThan(30_000);
  await wereToldToLeave(clients);
  expect(pod.logs.at(-1)).toContain('"event":"stopped"');
  expect(pod.logs.filter((line) => /"level":[56]0/.test(line))).toEqual([]);
}

/** A publish whose last bytes the client still owes. */
function slowPublish(url: string): { readonly answer: Promise<IncomingMessage>; finish(): void } {
  const body = JSON.stringify({ room: 'news', event: 'tick' });
  const headers = {
    authorization: `Bearer ${TEST_API_KEY}`,
    'content-type': 'application/json',
    'content-length': body.length,
  };
  const sending: ClientRequest = request(`${url}/v1/publish`, { method: 'POST', headers, agent: false });
  sending.write(body.slice(0, 10));
  const answer = new Promise<IncomingMessage>((resolve, reject) => sending.on('response', resolve).on('error', reject));
  answer.catch(() => {});
  return { answer, finish: () => void sending.end(body.slice(10)) };
}
