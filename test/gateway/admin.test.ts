import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeApiKey, makeDeviceToken } from '../../src/admission/secret-text.js';
import { runHere } from '../cli/run-here.js';
import { connect, open } from '../harness/client.js';
import { type Pod, startPod, TEST_API_KEY } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { token } from '../harness/token.js';
import { type Answer, ask, someone } from './fixture.js';

const BOUND = 'a-bound-key-of-at-least-32-characters-000';

let redis: RedisProcess;
let postgres: PostgresProcess;
let pod: Pod;

beforeAll(async () => {
  [redis, postgres] = await Promise.all([startRedis({ aof: 'off' }), startPostgres()]);
  pod = await startPod({
    redisUrl: redis.url,
    name: 'admin',
    env: { DATABASE_URL: postgres.url, HOLDFAST_API_KEYS: `${TEST_API_KEY},${BOUND}:acme` },
  });
});
afterAll(async () => {
  await pod?.stop();
  await Promise.all([redis?.stop(), postgres?.stop()]);
});

const get = (path: string, key?: string): Promise<Answer> => ask(pod, 'GET', path, { key });
const post = (path: string, body?: unknown, key?: string): Promise<Answer> => ask(pod, 'POST', path, { body, key });
const newKey = async (...scopes: string[]): Promise<string> => (await post('/v1/keys', { scopes })).body.key;

describe('a key', () => {
  const ROUTES = [
    ['publish', 'POST', '/v1/publish'],
    ['call', 'POST', '/v1/rpc/nobody/nothing'],
    ['read', 'GET', '/v1/rpc/nobody'],
    ['read', 'GET', '/v1/history/room'],
    ['read', 'GET', '/v1/presence/nobody'],
    ['sessions', 'DELETE', '/v1/sessions/nobody/nothing'],
    ['admin', 'GET', '/v1/tenants'],
    ['admin', 'GET', '/v1/keys'],
  ] as const;

  test('opens the routes of its scopes, and no other', async () => {
    const body = { room: 'r', event: 'e', waitForWorkerMs: 0 };
    for (const scope of ['publish', 'call', 'read', 'sessions', 'admin']) {
      const key = await newKey(scope);
      for (const [wanted, method, path] of ROUTES) {
        const { status, body: answer } = await ask(pod, method, path, {
          key,
          body: method === 'POST' ? body : undefined,
        });
        const what = `${scope} at ${method} ${path}`;
        if (wanted !== scope)
          expect({ status, code: answer.code }, what).toEqual({ status: 403, code: 'permission_denied' });
        else expect([200, 503], what).toContain(status);
      }
    }
  });

  test('of every route is named in its description, and every administrator’s route refuses one without the scope', async () => {
    const { body } = await get('/docs/json');
    const routes = Object.entries(body.paths as Record<string, Record<string, { security?: unknown }>>).flatMap(
      ([path, methods]) => Object.entries(methods).map(([method, { security }]) => ({ path, method, security })),
    );
    const key = await newKey('publish', 'call', 'read', 'sessions');
    const administrators = routes.filter(({ path }) => /^\/v1\/(tenants|keys)/.test(path));
    expect(administrators.length).toBe(14);
    for (const { path, method, security } of routes.filter(({ path }) => path.startsWith('/v1/')))
      expect(security, `${method} ${path}`).toEqual([{ apiKey: [] }]);
    for (const { path, method } of administrators)
      for (const refused of [key, BOUND])
        expect((await ask(pod, method.toUpperCase(), path, { key: refused })).status, `${method} ${path}`).toBe(403);
  });

  test('is told once, works at once, and ends at once', async () => {
    const made = await post('/v1/keys', { scopes: ['publish'], label: 'shop' });
    expect(made).toMatchObject({ status: 200, body: { scopes: ['publish'], label: 'shop', key: expect.any(String) } });
    const { id, key } = made.body;
    const event = { room: 'news', event: 'hello' };
    expect((await post('/v1/publish', event, key)).status).toBe(200);
    const list = await get('/v1/keys?limit=1000');
    expect(list.body.keys.map((entry: { id: string }) => entry.id)).toContain(id);
    expect(JSON.stringify(list.body)).not.toContain(key);
    expect(await post(`/v1/keys/${id}/revoke`)).toMatchObject({
      status: 200,
      body: { id, revokedAt: expect.any(Number) },
    });
    await eventually(async () => (await post('/v1/publish', event, key)).status === 401, { withinMs: 2000 });
    expect(await post('/v1/publish', event, key)).toMatchObject({ body: { error: 'the API key was revoked' } });
  });

  test('of a tenant speaks for that one, and can make no other key', async () => {
    const { key } = (await post('/v1/keys', { scopes: ['publish', 'read'], tenant: 'acme' })).body;
    const event = { room: 'news', event: 'hello' };
    expect((await post('/v1/publish', event, key)).status).toBe(200);
    expect(await post('/v1/publish', { ...event, tenant: 'other' }, key)).toMatchObject({ status: 403 });
    expect(await post('/v1/keys', { scopes: ['read'] }, key)).toMatchObject({ status: 403 });
    expect(await post('/v1/keys', { scopes: ['admin'], tenant: 'acme' })).toMatchObject({
      status: 400,
      body: { code: 'bad_request', error: expect.stringContaining('admin') },
    });
  });

  test('that nobody was given is refused', async () => {
    expect(await get('/v1/presence/ada', makeApiKey().key)).toMatchObject({
      status: 401,
      body: { code: 'unauthorized' },
    });
  });
});

test('secrets are in no cache', async () => {
  const made = [
    ['/v1/keys', { scopes: ['read'] }],
    ['/v1/tenants/acme/devices', { user: someone(), device: 'phone' }],
  ] as const;
  for (const [path, body] of made) {
    const response = await fetch(pod.url + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${TEST_API_KEY}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    expect(response.headers.get('cache-control')).toBe('no-store');
    await response.body?.cancel();
  }
});

describe('a tenant', () => {
  test('is created, archived and restored, and who is in it is closed', async () => {
    const tenant = someone('a/b ½');
    const path = `/v1/tenants/${encodeURIComponent(tenant)}`;
    expect(await get(path)).toMatchObject({ status: 404, body: { code: 'bad_request', retryable: false } });
    expect(await post('/v1/tenants', { tenant })).toMatchObject({ status: 200, body: { tenant, isNew: true } });
    expect(await post('/v1/tenants', { tenant })).toMatchObject({ status: 200, body: { isNew: false } });
    await using client = await connect(pod.url, { token: await token({ sub: 'ada', tenant }) });
    expect(await post(`${path}/archive`)).toMatchObject({ status: 200, body: { status: 'archived', isNew: false } });
    await eventually(() => !client.socket.connected, { withinMs: 2000 });
    expect(await post('/v1/tenants', { tenant })).toMatchObject({ status: 409, body: { code: 'conflict' } });
    expect(await post(`${path}/restore`)).toMatchObject({ status: 200, body: { status: 'active' } });
    await using back = await connect(pod.url, { token: await token({ sub: 'ada', tenant }) });
    expect(back.socket.connected).toBe(true);
  });

  test('is on one page of the list, and each page names the next', async () => {
    for (let count = 0; count < 3; count++) await post('/v1/tenants', { tenant: someone('paged') });
    const seen: string[] = [];
    for (let after = '', isLast = false; !isLast; ) {
      const { body } = await get(`/v1/tenants?limit=1${after && `&after=${encodeURIComponent(after)}`}`);
      seen.push(...body.tenants.map(({ tenant }: { tenant: string }) => tenant));
      after = body.next;
      isLast = after === undefined;
    }
    const all = (await get('/v1/tenants?limit=1000')).body.tenants.map(({ tenant }: { tenant: string }) => tenant);
    expect(seen).toEqual(all);
  });
});

describe('a device', () => {
  test('connects with its token until it is revoked, and again with the next', async () => {
    const user = someone();
    const body = { user, device: 'the phone' };
    const path = `/v1/tenants/acme/devices/${user}/${encodeURIComponent(body.device)}`;
    const first = await post('/v1/tenants/acme/devices', body);
    expect(first).toMatchObject({ status: 200, body: { ...body, tenant: 'acme', hasToken: true } });
    await using client = await connect(pod.url, { token: first.body.token });
    expect(await client.subscribe(`user:${user}`)).toMatchObject({ ok: true });
    expect(await post('/v1/tenants/acme/devices', body)).toMatchObject({ status: 409, body: { code: 'conflict' } });

    expect(await post(`${path}/revoke`)).toMatchObject({ status: 200, body: { revokedAt: expect.any(Number) } });
    await eventually(() => !client.socket.connected, { withinMs: 2000 });
    await using refused = open(pod.url, { token: first.body.token });
    await eventually(() => expect(refused.connectErrors.at(-1)).toMatchObject({ data: { code: 'unauthorized' } }));

    const second = await post('/v1/tenants/acme/devices', body);
    await using again = await connect(pod.url, { token: second.body.token });
    expect(again.socket.connected).toBe(true);
  });

  test.each(['is replaced', 'is revoked and made again at one go', 'is gone'])(
    'that was let in is out when its token %s',
    async (how) => {
      const user = someone();
      const path = '/v1/tenants/acme/devices';
      const { body } = await post(path, { user, device: 'tv' });
      await using client = await connect(pod.url, { token: body.token });
      await using byIssuer = await connect(pod.url, {
        token: await token({ sub: user, tenant: 'acme', device: 'other' }),
      });
      const sql = (text: string) => postgres.query(text, [user]);
      if (how === 'is replaced') await post(path, { user, device: 'tv', replace: true });
      else if (how === 'is gone') await sql('delete from devices where user_id = $1');
      // no pod can see what was between
      else
        await sql(
          "update devices set created_at = clock_timestamp(), token_hash = sha256('another') where user_id = $1",
        );
      await eventually(() => !client.socket.connected, { withinMs: 2000 });
      expect(byIssuer.socket.connected).toBe(true);
      if (how === 'is gone') return;
      // a pairing changes nothing
      const { body: other } = await post(path, { user, device: 'tv', replace: true });
      await using next = await connect(pod.url, { token: other.token });
      await post(`${path}/${user}/tv/unpair`);
      await post(`${path}/${user}/tv/pair`);
      expect(await next.subscribe(`user:${user}`)).toMatchObject({ ok: true });
      expect(next.disconnects).toEqual([]);
    },
  );

  test('is paired and unpaired, and listed as it is', async () => {
    const user = someone();
    const path = `/v1/tenants/acme/devices/${user}/tv`;
    expect((await post(`${path}/unpair`)).status).toBe(404);
    expect(await post(`${path}/pair`)).toMatchObject({
      body: { hasToken: false, isNew: true, pairedAt: expect.any(Number) },
    });
    expect((await get(`/v1/tenants/acme/devices?user=${user}`)).body.devices).toHaveLength(1);
    expect((await post(`${path}/unpair`)).body).not.toHaveProperty('pairedAt');
  });

  test('that nobody created is refused', async () => {
    await using refused = open(pod.url, { token: makeDeviceToken() });
    await eventually(() => expect(refused.connectErrors.at(-1)).toMatchObject({ data: { code: 'unauthorized' } }));
  });
});

test('tokens of a user are revoked up to now, those of its devices among them', async () => {
  const tenant = someone('tenant');
  const user = someone();
  const { body } = await post(`/v1/tenants/${tenant}/devices`, { user, device: 'phone' });
  await using byIssuer = await connect(pod.url, { token: await token({ sub: user, tenant }) });
  await using byDevice = await connect(pod.url, { token: body.token });
  await using other = await connect(pod.url, { token: await token({ sub: someone(), tenant }) });
  expect(await post(`/v1/tenants/${tenant}/revocations`, { user })).toEqual({ status: 200, body: { ok: true } });
  await eventually(() => !byIssuer.socket.connected && !byDevice.socket.connected, { withinMs: 2000 });
  expect(other.socket.connected).toBe(true);
});

test.each([
  ['POST', '/v1/tenants', {}],
  ['POST', '/v1/tenants', { tenant: 'a\u0000' }],
  ['POST', '/v1/tenants', { tenant: 5 }],
  ['GET', `/v1/tenants/${'x'.repeat(201)}`, undefined],
  ['GET', '/v1/tenants?limit=0', undefined],
  ['GET', '/v1/tenants/acme/devices?after=nothing', undefined],
  ['POST', '/v1/tenants/acme/devices', { user: 'ada' }],
  ['POST', '/v1/tenants/acme/devices', { user: 'ada', device: 'd', paired: 'yes' }],
  ['POST', '/v1/tenants/acme/revocations', { user: 'ada', token: 'both' }],
  ['POST', '/v1/tenants/acme/revocations', {}],
  ['POST', '/v1/keys', { scopes: [] }],
  ['POST', '/v1/keys', { scopes: ['root'] }],
  ['POST', '/v1/keys', { scopes: ['read'], expiresAt: 1 }],
])('%s %s with %j is a bad request', async (method, path, body) => {
  expect(await ask(pod, method, path, { body })).toMatchObject({ status: 400, body: { code: 'bad_request' } });
});

test('a pod without a database has no such routes, knows no device token, and the command line says so', async () => {
  await using plain = await startPod({ redisUrl: redis.url, name: 'plain', env: { DATABASE_URL: undefined } });
  expect((await ask(plain, 'GET', '/v1/tenants')).status).toBe(404);
  const way = { HOLDFAST_URL: plain.url, HOLDFAST_API_KEY: TEST_API_KEY };
  for (const [command, ...args] of [
    ['keys', 'list'],
    ['tenants', 'restore', 'acme'],
  ])
    expect(await runHere([command as string, ...args], way)).toMatchObject({
      code: 1,
      err: `holdfast: the relay at ${plain.url} has no database, and so no tenants, devices and keys\n`,
    });
  await using refused = open(plain.url, { token: makeDeviceToken() });
  await eventually(() =>
    expect(refused.connectErrors.at(-1)).toMatchObject({
      data: { code: 'unauthorized' },
      message: expect.stringContaining('database'),
    }),
  );
});

test('a database that is away is unavailable, and a change is said to be uncertain', async () => {
  await postgres.pause();
  try {
    const [list, made] = await Promise.all([get('/v1/tenants'), post('/v1/tenants', { tenant: someone('late') })]);
    expect(list).toMatchObject({ status: 503, body: { code: 'unavailable', retryable: true } });
    expect(list.body).not.toHaveProperty('mayHaveHappened');
    expect(made).toMatchObject({ status: 503, body: { code: 'unavailable', mayHaveHappened: true } });
  } finally {
    await postgres.resume();
  }
  await eventually(async () => (await get('/v1/tenants')).status === 200);
});
