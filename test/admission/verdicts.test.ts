import { afterAll, beforeAll, expect, test } from 'vitest';
import { ask } from '../gateway/fixture.js';
import { connect, open } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { AdmissionRig } from './rig.js';

/** Far below the interval of the revalidation, and far above what a notice takes. */
const NOTICE_MS = 4000;

let rig: AdmissionRig;
let tenants = 0;

const newTenant = (): string => `tenant-${++tenants}`;
const tokenOf = (tenant: string, sub = 'ann', device?: string): Promise<string> =>
  token({ sub, tenant, caps: ALL_CAPS, ...(device && { device }) });

beforeAll(async () => {
  rig = await AdmissionRig.start();
});
afterAll(async () => {
  await rig?.[Symbol.asyncDispose]();
});

test('an archived tenant is refused for good, told why, on every pod', async () => {
  const tenant = newTenant();
  await rig.archive(tenant);
  for (const pod of rig.pods) {
    await using client = open(pod.url, { token: await tokenOf(tenant) });
    await eventually(() => client.connectErrors.length > 0, { what: 'a refusal' });
    expect((client.connectErrors[0] as Error & { data?: object }).data).toMatchObject({
      code: 'tenant_inactive',
      retryable: false,
    });
    expect(client.connects).toEqual([]);
  }
});

test('an archive closes open sockets at once on every pod, and a restored tenant may come again', async () => {
  const tenant = newTenant();
  const clients = await Promise.all(rig.pods.map(async ({ url }) => connect(url, { token: await tokenOf(tenant) })));
  await using bystander = await connect(rig.pod(0).url, { token: await tokenOf(newTenant()) });
  await rig.archive(tenant);
  for (const client of clients) {
    await eventually(() => client.disconnects.length > 0, { withinMs: NOTICE_MS, what: 'the end of its socket' });
    expect(client.disconnects[0]?.reason).toBe('io server disconnect');
    expect(client.control.at(-1)).toMatchObject({
      event: 'holdfast:closing',
      args: [{ code: 'tenant_inactive', reconnect: false }],
    });
    await client.stop();
  }
  expect(bystander.disconnects).toEqual([]);
  await rig.sql("update tenants set status = 'active' where id = $1", [tenant]);
  await using back = await connect(rig.pod(1).url, { token: await tokenOf(tenant) });
  expect(back.socket.connected).toBe(true);
});

test('a revoked device, user or token is out at once, and everybody else stays', async () => {
  const tenant = newTenant();
  const url = rig.pod(0).url;
  await using device = await connect(url, { token: await tokenOf(tenant, 'ann', 'phone') });
  await using other = await connect(rig.pod(1).url, { token: await tokenOf(tenant, 'ann', 'tablet') });
  await using user = await connect(url, { token: await tokenOf(tenant, 'bob') });
  await rig.sql('insert into devices (tenant, user_id, id, revoked_at) values ($1, $2, $3, now())', [
    tenant,
    'ann',
    'phone',
  ]);
  await eventually(() => device.disconnects.length > 0, { withinMs: NOTICE_MS, what: 'the end of the device' });
  expect(device.control.at(-1)).toMatchObject({ args: [{ code: 'unauthorized', reason: 'the device is revoked' }] });
  await rig.sql("insert into revocations (tenant, kind, id) values ($1, 'user', $2)", [tenant, 'bob']);
  await eventually(() => user.disconnects.length > 0, { withinMs: NOTICE_MS, what: 'the end of the user' });
  expect(other.disconnects).toEqual([]);
  await using again = open(url, { token: await tokenOf(tenant, 'ann', 'phone') });
  await eventually(() => again.connectErrors.length > 0, { what: 'a refusal' });
  expect((again.connectErrors[0] as Error & { data?: object }).data).toMatchObject({ code: 'unauthorized' });
});

test('a publish passes on a confirmed verdict, and not once its tenant is archived', async () => {
  const tenant = newTenant();
  await using client = await connect(rig.pod(0).url, { token: await tokenOf(tenant) });
  expect(await client.publish({ room: 'news', event: 'e', data: 1 })).toMatchObject({ ok: true });
  const publish = () => ask(rig.pod(1), 'POST', '/v1/publish', { body: { tenant, room: 'news', event: 'e' } });
  expect((await publish()).status).toBe(200);
  await rig.archive(tenant);
  await eventually(async () => (await publish()).status === 403, { withinMs: NOTICE_MS, what: 'the fence to close' });
  expect((await publish()).body).toMatchObject({ code: 'tenant_inactive', retryable: false });
});

test('what was revoked of a device stays dead when the device is made anew', async () => {
  const tenant = newTenant();
  const stolen = await tokenOf(tenant, 'ann', 'phone');
  await using thief = await connect(rig.pod(0).url, { token: stolen });
  const devices = `/v1/tenants/${tenant}/devices`;
  expect((await ask(rig.pod(0), 'POST', `${devices}/ann/phone/revoke`)).status).toBe(200);
  await eventually(() => thief.disconnects.length > 0, { withinMs: NOTICE_MS, what: 'the end of the thief' });
  const made = await ask(rig.pod(0), 'POST', devices, { body: { user: 'ann', device: 'phone' } });
  expect(made.status).toBe(200);
  await using again = open(rig.pod(1).url, { token: stolen });
  await eventually(() => again.connectErrors.length > 0, { what: 'a refusal' });
  expect(again.connects).toEqual([]);
  await using anew = await connect(rig.pod(1).url, { token: made.body.token });
  expect(anew.socket.connected).toBe(true);
});

test('a refreshed token passes admission too, and a client that goes meanwhile leaves nothing', async () => {
  const tenant = newTenant();
  const revoked = await token({ sub: 'ann', tenant, caps: ALL_CAPS, claims: { jti: 'gone' } });
  await rig.sql("insert into revocations (tenant, kind, id) values ($1, 'token', 'gone')", [tenant]);
  await using client = await connect(rig.pod(0).url, { token: await tokenOf(tenant) });
  expect(await client.request('auth-refresh', { token: revoked })).toMatchObject({ ok: false, code: 'unauthorized' });
  expect(await client.request('auth-refresh', { token: await tokenOf(tenant) })).toMatchObject({ ok: true });
  rig.proxy.delay(200);
  try {
    for (let index = 0; index < 5; index++) {
      const leaver = await connect(rig.pod(0).url, { token: await tokenOf(tenant, `leaver-${index}`) });
      leaver.socket.emit('auth-refresh', { token: await tokenOf(tenant, `leaver-${index}`) });
      // the refresh is on its way to Postgres when its client goes
      expect(await leaver.request('presence-get', {})).toMatchObject({ ok: true });
      await leaver.stop();
    }
  } finally {
    rig.proxy.delay(0);
  }
  const closed = async (): Promise<number> =>
    [...(await rig.pod(0).metrics())].reduce(
      (total, [series, value]) => (series.startsWith('holdfast_admission_closed_total') ? total + value : total),
      0,
    );
  await eventually(async () => (await rig.pod(0).metrics()).get('holdfast_connections') === 1, {
    what: 'they to be gone',
  });
  const before = await closed();
  await rig.archive(tenant);
  await eventually(() => client.disconnects.length > 0, { what: 'the end of the one that stayed' });
  expect((await closed()) - before).toBe(1);
});

test('a key may do nothing more in the name of an archived tenant', async () => {
  const tenant = newTenant();
  const { body } = await ask(rig.pod(0), 'POST', '/v1/keys', { body: { tenant, scopes: ['publish', 'call', 'read'] } });
  const { key } = body;
  const paths = ['/v1/history/news', '/v1/presence/ann', '/v1/rpc/ann'];
  for (const path of paths) expect(await ask(rig.pod(1), 'GET', path, { key })).toMatchObject({ status: 200 });
  await rig.archive(tenant);
  const isRefused = async (): Promise<boolean> => (await ask(rig.pod(1), 'GET', '/v1/rpc/ann', { key })).status === 403;
  await eventually(isRefused, { withinMs: NOTICE_MS, what: 'the first refusal' });
  for (const path of paths)
    expect(await ask(rig.pod(1), 'GET', path, { key })).toMatchObject({
      status: 403,
      body: { code: 'tenant_inactive' },
    });
  const call = await ask(rig.pod(1), 'POST', '/v1/rpc/ann/work', { body: {}, key });
  expect(call).toMatchObject({ status: 403, body: { code: 'tenant_inactive', mayHaveRun: false } });
});
