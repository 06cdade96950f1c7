import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, SignJWT } from 'jose';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { connect, open } from '../harness/client.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { dataOf, join, publish, type Stack, someone, startStack } from './fixture.js';
import { RawClient } from './raw-client.js';

const UNAVAILABLE = 'holdfast_connections_refused_total{reason="unavailable"}';
let stack: Stack;

beforeAll(async () => {
  stack = await startStack(1);
});
afterAll(() => stack?.stop());

test.concurrent('a socket ends with its token: told why, nothing after, and nobody gets in with it', async () => {
  const pod = stack.pod(0);
  const room = someone('room');
  const sub = someone();
  const expiring = await token({ sub, caps: ALL_CAPS, ttlSeconds: 4 });
  const endsAt = Math.floor(Date.now() / 1000) * 1000 + 4000;
  await using raw = new RawClient(pod.port);
  await raw.open({ token: expiring });
  await raw.ask(1, 'subscribe', { room });
  await using client = await connect(pod.url, { token: expiring });
  await client.subscribe(room);
  while (Date.now() < endsAt + 4000 && !raw.isClosed) await publish(pod, room, [Date.now()]);
  expect(raw.isClosed).toBe(true);
  expect(Date.now()).toBeLessThan(endsAt + 4000);
  const closing = raw.texts.findIndex((text) => text.includes('holdfast:closing'));
  expect(raw.texts[closing]).toContain('{"code":"token_expired","reason":"the token has expired","reconnect":true}');
  expect(raw.texts.slice(closing + 1).filter((text) => text.startsWith('42'))).toEqual([]);
  // the stock client came back with the same token, until it was told the end of it
  await eventually(() => client.connectErrors.length > 0, { withinMs: 15_000 });
  expect(client.connectErrors[0]).toMatchObject({ message: 'the token has expired', data: { code: 'token_expired' } });
  expect(client.socket.active).toBe(false);
  const seen = client.received.length;
  await publish(pod, room, ['after']);
  await using other = await join(pod, { rooms: [room] });
  await publish(pod, room, ['marker']);
  await eventually(() => dataOf(other).includes('marker'));
  expect(client.received).toHaveLength(seen);
});

test.concurrent('a refreshed token keeps the socket, its rooms and its position', async () => {
  const pod = stack.pod(0);
  const room = someone('room');
  const sub = someone();
  await using client = await connect(pod.url, { token: await token({ sub, caps: ALL_CAPS, ttlSeconds: 4 }) });
  await client.subscribe(room);
  expect(await client.request('auth-refresh', { token: await token({ sub, caps: ALL_CAPS }) })).toEqual({ ok: true });
  const end = Date.now() + 5500;
  let count = 0;
  while (Date.now() < end) {
    await publish(pod, room, [count++]);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  await eventually(() => client.received.length === count);
  expect(client.disconnects).toEqual([]);
  expect(dataOf(client)).toEqual(Array.from({ length: count }, (_, index) => index));
});

test.concurrent('a refresh with fewer rights leaves the rooms that they do not cover, at once and in the record', async () => {
  const pod = stack.pod(0);
  const [kept, left] = [someone('kept'), someone('left')];
  const sub = someone();
  await using client = await connect(pod.url, { token: await token({ sub, caps: ALL_CAPS }) });
  for (const room of [kept, left]) await client.subscribe(room);
  const fewer = await token({ sub, caps: { subscribe: [kept] } });
  expect(await client.request('auth-refresh', { token: fewer })).toEqual({ ok: true });
  await publish(pod, left, ['hidden']);
  await publish(pod, kept, ['shown']);
  await publish(pod, `user:${sub}`, ['own']);
  await eventually(() => client.received.length === 2);
  expect(await client.publish({ room: kept, event: 'e' })).toMatchObject({ code: 'permission_denied' });
  client.cut();
  await publish(pod, left, ['hidden']);
  await publish(pod, kept, ['shown again']);
  await eventually(() => client.received.length === 3);
  expect(dataOf(client)).toEqual(['shown', 'own', 'shown again']);
});

test.concurrent('a refresh with another’s token, another device’s, or none is refused, and changes nothing', async () => {
  const pod = stack.pod(0);
  const sub = someone();
  await using client = await connect(pod.url, { token: await token({ sub, device: 'a' }) });
  const refused = async (answer: unknown, code: string) =>
    expect(await client.request('auth-refresh', { token: answer })).toMatchObject({ ok: false, code });
  await refused(await token({ sub: someone(), device: 'a' }), 'permission_denied');
  await refused(await token({ sub, device: 'b' }), 'permission_denied');
  await refused(await token({ sub }), 'permission_denied');
  await refused(await token({ sub, device: 'a', tenant: 'other' }), 'permission_denied');
  await refused(await token({ sub, device: 'a', ttlSeconds: -60 }), 'token_expired');
  await refused('x', 'unauthorized');
  await refused(undefined, 'unauthorized');
  await publish(pod, `user:${sub}`, ['still its own']);
  await eventually(() => client.received.length === 1);
});

test.concurrent('a token of sixty days, or of ten thousand years, closes nothing', async () => {
  for (const ttlSeconds of [60 * 86_400, 1e11]) {
    await using client = await connect(stack.pod(0).url, { token: await token({ sub: someone(), ttlSeconds }) });
    await client.request('unsubscribe', { room: 'x' });
    expect(client.disconnects).toEqual([]);
    // that it is online comes to itself too, sooner or later
    expect(client.control.filter(({ event }) => event !== 'presence')).toEqual([]);
  }
});

test.concurrent('an outage of the issuer refuses nobody: clients wait, and are in when it is back', async () => {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const keys = JSON.stringify({ keys: [{ ...(await exportJWK(publicKey)), kid: 'k', alg: 'ES256' }] });
  let isOut = true;
  await using issuer = createServer((_request, response) => response.writeHead(isOut ? 503 : 200).end(keys));
  issuer.listen(0, '127.0.0.1');
  await once(issuer, 'listening');
  await using pod = await startPod({
    redisUrl: stack.redis.url,
    name: 'with-issuer',
    env: {
      HOLDFAST_JWT_SECRET: undefined,
      HOLDFAST_JWT_JWKS_URL: `http://127.0.0.1:${(issuer.address() as AddressInfo).port}/`,
      HOLDFAST_JWT_ALGORITHM: 'ES256',
    },
  });
  const signed = await new SignJWT({ sub: someone() })
    .setProtectedHeader({ alg: 'ES256', kid: 'k' })
    .setExpirationTime('5m')
    .sign(privateKey);
  await using client = open(pod.url, { token: signed });
  await eventually(async () => ((await pod.metrics()).get(UNAVAILABLE) ?? 0) >= 1, { what: 'a soft refusal' });
  isOut = false;
  await client.connected(20_000);
  expect(client.connectErrors.filter((error) => 'data' in error)).toEqual([]);
  // a token of the other kind is no token here
  await using forger = new RawClient(pod.port);
  expect((await forger.open({ token: await token({ sub: someone() }) })).data?.code).toBe('unauthorized');
  // and while the issuer is away again, who is known stays known
  isOut = true;
  await using second = await connect(pod.url, { token: signed });
  expect(second.connects).toHaveLength(1);
});
