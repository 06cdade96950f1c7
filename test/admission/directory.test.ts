import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Directory, NewKey, Revocation } from '../../src/admission/directory.js';
import { sha256 } from '../../src/admission/secret-text.js';
import { StoredDirectory } from '../../src/admission/stored-directory.js';
import type { Database, Row } from '../../src/postgres/database.js';
import { migrate } from '../../src/postgres/migrations.js';
import { ENGINES, type Engine } from '../postgres/engines.js';

const MINUTE = 60_000;

/** What no database may ever be asked for. */
const NO_NAMES: readonly unknown[] = [
  '',
  'a\u0000b',
  'a\nb',
  '\ud800',
  'x'.repeat(201),
  'x'.repeat(1_000_000),
  5,
  ['a'],
  {},
  null,
  undefined,
];

describe.each(Object.entries(ENGINES))('in %s', (_, start) => {
  let engine: Engine;
  let database: Database;
  let directory: Directory;
  let names = 0;
  const someone = (): string => `no ${++names}: ½ “%_\\' / é 😀`;

  beforeAll(async () => {
    engine = await start();
    ({ database } = engine);
    await migrate(database);
    directory = new StoredDirectory(database);
  });
  afterAll(() => engine?.[Symbol.asyncDispose]());

  const rows = (text: string, values: unknown[] = []): Promise<readonly Row[]> => database.query(text, values);

  describe('a tenant', () => {
    test('is made once, and is the same again', async () => {
      const tenant = someone();
      expect(await directory.tenant(tenant)).toBeUndefined();
      const made = await directory.createTenant(tenant);
      const { isNew, ...entry } = made;
      expect(made).toEqual({
        tenant,
        status: 'active',
        isNew: true,
        createdAt: expect.any(Number),
        changedAt: made.createdAt,
      });
      expect(isNew && Math.abs(Date.now() - made.createdAt)).toBeLessThan(MINUTE);
      expect(await directory.createTenant(tenant)).toEqual({ ...entry, isNew: false });
      expect(await directory.tenant(tenant)).toEqual(entry);
    });

    test('that is archived stays so until it is restored, however often either is asked for', async () => {
      const tenant = someone();
      await directory.createTenant(tenant);
      const archived = await directory.archiveTenant(tenant);
      expect(archived).toMatchObject({ status: 'archived', isNew: false });
      expect(await directory.archiveTenant(tenant)).toEqual(archived);
      await expect(directory.createTenant(tenant)).rejects.toMatchObject({ code: 'conflict' });
      expect((await directory.tenant(tenant))?.status).toBe('archived');
      const restored = await directory.restoreTenant(tenant);
      expect(restored?.status).toBe('active');
      expect(restored?.changedAt).toBeGreaterThanOrEqual(archived.changedAt);
      expect(await directory.restoreTenant(tenant)).toEqual(restored);
    });

    test('can be archived that nothing was known of, and not be restored', async () => {
      const tenant = someone();
      expect(await directory.restoreTenant(tenant)).toBeUndefined();
      expect(await directory.archiveTenant(tenant)).toMatchObject({ status: 'archived', isNew: true });
    });

    test('that two create and archive at one instant is archived in the end', async () => {
      for (let round = 0; round < 10; round++) {
        const tenant = someone();
        const done = await Promise.allSettled([
          directory.createTenant(tenant),
          directory.archiveTenant(tenant),
          directory.createTenant(tenant),
          directory.archiveTenant(tenant),
        ]);
        for (const outcome of done)
          if (outcome.status === 'rejected') expect(outcome.reason).toMatchObject({ code: 'conflict' });
        expect((await directory.tenant(tenant))?.status).toBe('archived');
      }
    });
  });

  describe('a device', () => {
    const device = (tenant = someone()) => ({ tenant, user: someone(), device: someone() });

    test('gets a token of which only a hash is kept', async () => {
      const name = device();
      const made = await directory.createDevice(name);
      expect(made).toEqual({
        ...name,
        hasToken: true,
        createdAt: expect.any(Number),
        pairedAt: made.createdAt,
        token: expect.stringMatching(/^hfd_/),
      });
      const [row] = await rows("select encode(token_hash, 'hex') as hash from devices where tenant = $1", [
        name.tenant,
      ]);
      expect(row?.hash).toBe(sha256(made.token).toString('hex'));
      const dump = JSON.stringify(await rows('select * from devices where tenant = $1', [name.tenant]));
      expect(dump).not.toContain(made.token.slice(4, 30));
    });

    test('that has a token keeps it, unless it is to be replaced', async () => {
      const name = device();
      const hashes = () =>
        rows("select encode(token_hash, 'hex') as hash from devices where tenant = $1", [name.tenant]);
      await directory.createDevice(name);
      const before = await hashes();
      await expect(directory.createDevice(name)).rejects.toMatchObject({ code: 'conflict' });
      expect(await hashes()).toEqual(before);
      const { token } = await directory.createDevice({ ...name, isReplacing: true, isPaired: false });
      expect(await hashes()).toEqual([{ hash: sha256(token).toString('hex') }]);
      expect((await directory.listDevices(name.tenant)).rows).toEqual([
        { ...name, hasToken: true, createdAt: expect.any(Number) },
      ]);
    });

    test('that is revoked stays so, and comes back with another token only', async () => {
      const name = device();
      const first = await directory.createDevice(name);
      const revoked = await directory.revokeDevice(name);
      expect(revoked).toMatchObject({ hasToken: true, revokedAt: expect.any(Number), isNew: false });
      expect(await directory.revokeDevice(name)).toEqual(revoked);
      await expect(directory.pairDevice(name)).rejects.toMatchObject({ code: 'conflict' });
      const second = await directory.createDevice(name);
      expect(second.token).not.toBe(first.token);
      expect(second.revokedAt).toBeUndefined();
    });

    test('of an issuer can be paired and revoked, though nothing was known of it', async () => {
      const [paired, revoked] = [device(), device()];
      expect(await directory.unpairDevice(paired)).toBeUndefined();
      const first = await directory.pairDevice(paired);
      expect(first).toMatchObject({ hasToken: false, pairedAt: expect.any(Number), isNew: true });
      expect(await directory.pairDevice(paired)).toEqual({ ...first, isNew: false });
      expect((await directory.unpairDevice(paired))?.pairedAt).toBeUndefined();
      expect(await directory.revokeDevice(revoked)).toMatchObject({ revokedAt: expect.any(Number), isNew: true });
      expect(await directory.createDevice(paired)).toMatchObject({ hasToken: true });
    });

    test('is listed under its tenant, in pages, by user and name', async () => {
      const tenant = someone();
      const all = ['a', 'b/c', 'b/d', 'é'].flatMap((user) => ['1', '2/3'].map((id) => ({ tenant, user, device: id })));
      for (const name of all) await directory.pairDevice(name);
      await directory.pairDevice({ ...(all[0] as (typeof all)[0]), tenant: someone() });
      for (const limit of [1, 3, 8, 9]) {
        const seen: string[] = [];
        let after: string | undefined;
        do {
          const page = await directory.listDevices(tenant, { after, limit });
          expect(page.rows.length).toBeLessThanOrEqual(limit);
          seen.push(...page.rows.map(({ user, device: id }) => `${user} ${id}`));
          after = page.next;
        } while (after !== undefined);
        expect(seen).toEqual([...new Set(seen)]);
        expect([...seen].sort()).toEqual(all.map(({ user, device: id }) => `${user} ${id}`).sort());
      }
      const { rows: some } = await directory.listDevices(tenant, { user: 'b/c' });
      expect(some.map(({ device: id }) => id)).toEqual(['1', '2/3']);
    });
  });

  describe('an API key', () => {
    test('is told once, and kept as a hash', async () => {
      const tenant = someone();
      const expiresAt = Date.now() + MINUTE;
      const made = await directory.createKey({
        scopes: ['publish', 'read', 'publish'],
        tenant,
        label: 'shop',
        expiresAt,
      });
      const { key, ...entry } = made;
      expect(entry).toEqual({
        id: key.split('_')[1],
        tenant,
        scopes: ['publish', 'read'],
        label: 'shop',
        createdAt: expect.any(Number),
        expiresAt,
      });
      expect((await directory.listKeys({ tenant })).rows).toEqual([entry]);
      const [row] = await rows("select encode(key_hash, 'hex') as hash from api_keys where id = $1", [made.id]);
      expect(row?.hash).toBe(sha256(key).toString('hex'));
    });

    test('for all tenants may administer', async () => {
      const { tenant, scopes } = await directory.createKey({ scopes: ['admin'] });
      expect({ tenant, scopes }).toEqual({ tenant: undefined, scopes: ['admin'] });
    });

    test.each([
      ['no scope', { scopes: [] }],
      ['a scope that there is not', { scopes: ['root' as 'admin'] }],
      ['a tenant, and the scope admin', { scopes: ['read', 'admin'], tenant: 'acme' }],
      ['an end that has come', { scopes: ['read'], expiresAt: Date.now() - 1 }],
      ['an end that no clock shows', { scopes: ['read'], expiresAt: 1e18 }],
      ['an end that is none', { scopes: ['read'], expiresAt: Number.NaN }],
      ['a label with a line end', { scopes: ['read'], label: 'a\nb' }],
    ] satisfies readonly (readonly [string, NewKey])[])('with %s is a bad request', async (_name, key) => {
      await expect(directory.createKey(key)).rejects.toMatchObject({ code: 'bad_request' });
    });

    test('that somebody made for ever at psql is listed as one that does not expire', async () => {
      const { id } = await directory.createKey({ scopes: ['read'], tenant: 'for ever' });
      await rows("update api_keys set expires_at = 'infinity' where id = $1", [id]);
      const [entry] = (await directory.listKeys({ tenant: 'for ever' })).rows;
      expect(entry).not.toHaveProperty('expiresAt');
    });

    test('that is revoked stays so; one that is not there is none', async () => {
      const { id } = await directory.createKey({ scopes: ['read'] });
      const revoked = await directory.revokeKey(id);
      expect(revoked?.revokedAt).toEqual(expect.any(Number));
      expect(await directory.revokeKey(id)).toEqual(revoked);
      expect(await directory.revokeKey('nobody')).toBeUndefined();
    });
  });

  describe('a revocation', () => {
    const kept = (tenant: string) =>
      rows(
        `select kind, id, (extract(epoch from not_before) * 1000)::float8 as before,
           (extract(epoch from expires_at) * 1000)::float8 as expires from revocations where tenant = $1 order by kind`,
        [tenant],
      );

    test('of a user counts up to now, and never goes back', async () => {
      const [tenant, user] = [someone(), someone()];
      await directory.revokeTokens({ tenant, user, before: 1_000_000 });
      expect(await kept(tenant)).toEqual([{ kind: 'user', id: user, before: 1_000_000, expires: null }]);
      await directory.revokeTokens({ tenant, user });
      const [now] = await kept(tenant);
      expect(Math.abs((now?.before as number) - Date.now())).toBeLessThan(MINUTE);
      await directory.revokeTokens({ tenant, user, before: 2_000_000 });
      expect(await kept(tenant)).toEqual([now]);
    });

    test('is forgotten when all that it is about has expired, and no sooner', async () => {
      const [tenant, hour] = [someone(), 3_600_000];
      const expiresAt = Date.now() + hour;
      await directory.revokeTokens({ tenant, token: 'gone', expiresAt: Date.now() - 2 * hour });
      await directory.revokeTokens({ tenant, token: 'kept', expiresAt });
      await directory.revokeTokens({ tenant, user: 'kept' });
      await directory.revokeTokens({ tenant, user: 'kept', expiresAt });
      expect(await kept(tenant)).toMatchObject([
        { kind: 'token', id: 'kept', expires: expiresAt },
        { kind: 'user', id: 'kept', expires: null },
      ]);
    });

    test.each([
      ['of a time to come', { tenant: 't', user: 'u', before: Date.now() + 10 * MINUTE }],
      ['of no time', { tenant: 't', user: 'u', before: Number.POSITIVE_INFINITY }],
      ['kept to no time', { tenant: 't', token: 'j', expiresAt: 1.5 }],
    ] satisfies readonly (readonly [string, Revocation])[])('%s is a bad request', async (_name, revocation) => {
      await expect(directory.revokeTokens(revocation)).rejects.toMatchObject({ code: 'bad_request' });
    });
  });

  test('tenants and keys are listed in pages', async () => {
    for (let count = 0; count < 3; count++) {
      await directory.createTenant(someone());
      await directory.createKey({ scopes: ['read'] });
    }
    const lists = [
      (after: string | undefined, limit: number) => directory.listTenants({ after, limit }),
      (after: string | undefined, limit: number) => directory.listKeys({ after, limit }),
    ];
    for (const list of lists) {
      const all = (await list(undefined, 1000)).rows;
      const paged: unknown[] = [];
      for (let after: string | undefined, isLast = false; !isLast; isLast = after === undefined) {
        const page = await list(after, 2);
        paged.push(...page.rows);
        after = page.next;
      }
      expect(paged.length).toBeGreaterThanOrEqual(3);
      expect(paged).toEqual(all);
    }
    for (const limit of [0, 1001, 1.5, Number.NaN])
      await expect(directory.listTenants({ limit })).rejects.toMatchObject({ code: 'bad_request' });
    for (const after of ['', 'a', 'a/b/c', '%', '/'])
      await expect(directory.listDevices('t', { after })).rejects.toMatchObject({ code: 'bad_request' });
  });

  test('what is no name is a bad request, and the database never hears of it', async () => {
    const count = async () =>
      (await rows('select (select count(*) from tenants)::int4 as t, (select count(*) from devices)::int4 as d'))[0];
    const before = await count();
    for (const none of NO_NAMES) {
      const name = none as string;
      const good = { tenant: 't', user: 'u', device: 'd' };
      const asked = [
        () => directory.createTenant(name),
        () => directory.tenant(name),
        () => directory.archiveTenant(name),
        () => directory.restoreTenant(name),
        () => directory.listDevices(name),
        ...Object.keys(good).flatMap((part) => [
          () => directory.createDevice({ ...good, [part]: name }),
          () => directory.pairDevice({ ...good, [part]: name }),
          () => directory.unpairDevice({ ...good, [part]: name }),
          () => directory.revokeDevice({ ...good, [part]: name }),
        ]),
        () => directory.revokeKey(name),
        () => directory.revokeTokens({ tenant: name, user: 'u' }),
        () => directory.revokeTokens({ tenant: 't', user: name }),
        () => directory.revokeTokens({ tenant: 't', token: name }),
      ];
      for (const ask of asked)
        await expect(ask(), `${ask} of ${JSON.stringify(none)?.slice(0, 20)}`).rejects.toMatchObject({
          code: 'bad_request',
        });
    }
    expect(await count()).toEqual(before);
  });
});
