import { afterAll, beforeAll, expect, test } from 'vitest';
import { ask } from '../gateway/fixture.js';
import { connect, open } from '../harness/client.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { AdmissionRig } from './rig.js';

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
    // far below the interval of the revalidation
    await eventually(() => client.disconnects.length > 0, { withinMs: 1500, what: 'the end of its socket' });
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
  await eventually(() => device.disconnects.length > 0, { withinMs: 1500, what: 'the end of the device' });
  expect(device.control.at(-1)).toMatchObject({ args: [{ code: 'unauthorized', reason: 'the device is revoked' }] });
  await rig.sql("insert into revocations (tenant, kind, id) values ($1, 'user', $2)", [tenant, 'bob']);
  await eventually(() => user.disconnects.length > 0, { withinMs: 1500, what: 'the end of the user' });
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
  await eventually(async () => (await publish()).status === 403, { withinMs: 1500, what: 'the fence to close' });
  expect((await publish()).body).toMatchObject({ code: 'tenant_inactive', retryable: false });
});
