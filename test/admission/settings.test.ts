import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { addressOf } from '../../src/gateway/socket/address.js';
import { ask } from '../gateway/fixture.js';
import { connect, open } from '../harness/client.js';
import { type Pod, spawnPod, startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { AdmissionRig } from './rig.js';

let rig: AdmissionRig;
/** Unlike the rig's own. */
let strict: Pod;
let any: Pod;
beforeAll(async () => {
  rig = await AdmissionRig.start({ pods: 1, env: { HOLDFAST_TRUST_PROXY: '0', HOLDFAST_ADMISSION_FLAP_MAX: '3' } });
  const { url: redisUrl } = rig.redis;
  const url = rig.databaseUrl.replace(`:${rig.postgres.port}/`, `:${rig.proxy.port}/`);
  [strict, any] = await Promise.all([
    startPod({
      redisUrl,
      name: 'strict',
      env: { DATABASE_URL: url, HOLDFAST_ADMISSION_STRICT: 'on', HOLDFAST_ADMISSION_ON_ERROR: 'closed' },
    }),
    startPod({
      redisUrl,
      name: 'any',
      env: { HOLDFAST_SINGLE_SESSION: 'off', HOLDFAST_TRUST_PROXY: '1', HOLDFAST_ADMISSION_CONNECTS_PER_SECOND: '1' },
    }),
  ]);
});
afterAll(async () => {
  await Promise.all([strict?.stop(), any?.stop()]);
  await rig?.[Symbol.asyncDispose]();
});

const jwt = (sub: string, tenant?: string) => token({ sub, caps: ALL_CAPS, ...(tenant && { tenant }) });

test('HOLDFAST_ADMISSION_STRICT: a tenant that nobody made is inactive', async () => {
  await using stranger = open(strict.url, { token: await jwt('ann', 'nobody-made-it') });
  await eventually(() => stranger.connectErrors.length > 0, { what: 'a refusal' });
  expect((stranger.connectErrors[0] as Error & { data?: object }).data).toMatchObject({ code: 'tenant_inactive' });
  await rig.sql("insert into tenants (id) values ('made')");
  await using known = await connect(strict.url, { token: await jwt('ann', 'made') });
  expect(known.socket.connected).toBe(true);
});

test('HOLDFAST_ADMISSION_ON_ERROR=closed: who connects is sent away to come back, and open sockets stay', async () => {
  await rig.sql("insert into tenants (id) values ('closed')");
  await using inside = await connect(strict.url, { token: await jwt('ann', 'closed') });
  rig.proxy.blackhole(true);
  try {
    await using outside = open(strict.url, { token: await jwt('bob', 'closed') });
    await eventually(() => outside.control.length > 0, { what: 'word of why' });
    expect(outside.control[0]).toMatchObject({
      event: 'holdfast:closing',
      args: [{ code: 'unavailable', reconnect: true }],
    });
    expect(await outside.request('publish', { room: 'r', event: 'e' })).toMatchObject({ ok: false, retryable: true });
    rig.proxy.blackhole(false);
    await eventually(() => outside.positions.length > 0, { withinMs: 20_000, what: 'it to be in by itself' });
    expect(inside.disconnects).toEqual([]);
  } finally {
    rig.proxy.blackhole(false);
  }
});

test('strict and closed without a Postgres end the start with one line', async () => {
  for (const env of [{ HOLDFAST_ADMISSION_STRICT: 'on' }, { HOLDFAST_ADMISSION_ON_ERROR: 'closed' }]) {
    await using pod = await spawnPod({ redisUrl: rig.redis.url, name: 'without', env });
    expect((await pod.exit).code).not.toBe(0);
    expect(pod.logs.join('\n')).toContain('want a DATABASE_URL');
  }
});

test('HOLDFAST_SINGLE_SESSION=off: a device has any number of connections, and no session to end', async () => {
  const device = await token({ sub: 'ann', device: 'screen', caps: ALL_CAPS });
  await using first = await connect(any.url, { token: device });
  await using second = await connect(any.url, { token: device });
  expect([first.socket.connected, second.socket.connected]).toEqual([true, true]);
  expect(await ask(any, 'DELETE', '/v1/sessions/ann/screen')).toMatchObject({ status: 400 });
});

test('connects of one address have a limit when the proxy is trusted, and of others none', async () => {
  const from = (address: string) => ({ extraHeaders: { 'x-forwarded-for': `10.0.0.1, ${address}` } });
  const come = async (address: string) => {
    const { io } = await import('socket.io-client');
    const socket = io(any.url, {
      auth: { token: await jwt('ann') },
      transports: ['websocket'],
      forceNew: true,
      reconnection: false,
      ...from(address),
    });
    const fate = await new Promise((resolve) => {
      socket.on('device:throttled', ({ reason }) => resolve(reason));
      socket.on('holdfast:position', () => resolve('in'));
    });
    socket.disconnect();
    return fate;
  };
  const fates = await Promise.all(Array.from({ length: 14 }, () => come('192.0.2.7')));
  expect([fates.filter((fate) => fate === 'in').length, fates.filter((fate) => fate === 'flap').length]).toEqual([
    10, 4,
  ]);
  expect(await come('192.0.2.8')).toBe('in');
  const one = await Promise.all(Array.from({ length: 14 }, (_, index) => come(`2001:db8:0:7::${index}`)));
  expect(one.filter((fate) => fate === 'in').length).toBe(10);
  expect(await come('2001:db8:0:8::1')).toBe('in');
});

test('forged tokens are limited under their address and the device they name; a good one passes all the same', async () => {
  const auth = { device: 'phone' };
  const fates: unknown[] = [];
  for (let index = 0; index < 5; index++) {
    await using forged = open(rig.pod(0).url, { token: 'forged', auth, reconnectionDelayMs: 60_000 });
    await eventually(() => forged.connectErrors.length + forged.control.length > 0, { what: 'a refusal' });
    fates.push((forged.control[0]?.args[0] as { reason?: string })?.reason ?? 'unauthorized');
  }
  expect(fates).toEqual(['unauthorized', 'unauthorized', 'unauthorized', 'flap', 'flap']);
  await using honest = await connect(rig.pod(0).url, { token: await jwt('honest'), auth });
  await eventually(() => honest.positions.length > 0, { what: 'the honest one to be in' });
  expect(honest.control).toEqual([]);
});

describe('the address of a client', () => {
  const origin = (address: string, forwarded?: string) => ({
    address,
    headers: forwarded === undefined ? {} : { 'x-forwarded-for': forwarded },
  });

  test.each([
    ['is not known without a word on proxies', undefined, '192.0.2.1', '198.51.100.1', undefined],
    ['is the peer without proxies, whatever it says of itself', 0, '192.0.2.1', '198.51.100.1', '192.0.2.1'],
    [
      'is what the one proxy added, and not what its client claims',
      1,
      '10.0.0.1',
      '6.6.6.6, 198.51.100.1',
      '198.51.100.1',
    ],
    ['is what the outer of two proxies added', 2, '10.0.0.1', '6.6.6.6, 198.51.100.1, 10.0.0.2', '198.51.100.1'],
    ['has no port', 1, '10.0.0.1', '198.51.100.1:4711', '198.51.100.1'],
    ['has no brackets', 1, '10.0.0.1', '[2001:db8:0:7::1]:4711', '2001:db8:0:7::/64'],
    ['is not known when the header holds fewer', 2, '10.0.0.1', '198.51.100.1', undefined],
    ['is not known when the header is missing', 1, '10.0.0.1', undefined, undefined],
    ['is not known when it is none', 1, '10.0.0.1', 'unknown', undefined],
    ['is not known when the peer is already gone', 0, '', undefined, undefined],
  ] as const)('%s', (_name, proxies, address, forwarded, expected) => {
    expect(addressOf(origin(address, forwarded), proxies)).toBe(expected);
  });

  test.each([
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
    ['2001:0DB8:0001:0002:ffff:ffff:ffff:ffff', '2001:db8:1:2::/64'],
    ['2001:db8:1:3::', '2001:db8:1:3::/64'],
    ['2001:db8::1', '2001:db8:0:0::/64'],
    ['fe80::1%eth0', 'fe80:0:0:0::/64'],
    ['::1', '0:0:0:0::/64'],
    ['::', '0:0:0:0::/64'],
    ['1::8', '1:0:0:0::/64'],
    ['::ffff:192.0.2.1', '192.0.2.1'],
    ['::ffff:c000:201', '192.0.2.1'],
    ['0:0:0:0:0:FFFF:192.0.2.1', '192.0.2.1'],
    ['::ffff:0:1', '0.0.0.1'],
  ])('counts as its /64, and one of IPv4 as that: %s', (address, expected) => {
    expect(addressOf(origin(address), 0)).toBe(expected);
    expect(addressOf(origin('10.0.0.1', `[${address}]:4711`), 1)).toBe(expected);
  });
});
