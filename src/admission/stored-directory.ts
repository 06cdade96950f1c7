import { RelayError } from '../core/errors.js';
import type { Database, Row } from '../postgres/database.js';
import { isName, scoped } from '../wire/names.js';
import type {
  Changed,
  Device,
  DeviceName,
  Directory,
  KeyEntry,
  NewDevice,
  NewKey,
  Page,
  PageOptions,
  Revocation,
  Tenant,
} from './directory.js';
import { failureOf } from './failure-of.js';
import { isScope, type Scope } from './scopes.js';
import { makeApiKey, makeDeviceToken, sha256 } from './secret-text.js';

const DEFAULT_LIMIT = 100;
const MAX_LIMIT = 1000;
const MAX_LABEL = 200;
/** What a Date can hold. */
const MAX_TIME = 8.64e15;
/** By how much the clock of whoever revokes may be ahead. */
const CLOCK_TOLERANCE_MS = 60_000;

/** Absent for `infinity`, which only somebody at `psql` can have set. */
const ms = (column: string, as: string): string =>
  `case when isfinite(${column}) then floor(extract(epoch from ${column}) * 1000)::float8 end as ${as}`;
const TENANT = `id, status, ${ms('created_at', 'created')}, ${ms('changed_at', 'changed')}`;
const DEVICE = `tenant, user_id, id, token_hash is not null as has_token, ${ms('created_at', 'created')},
  ${ms('paired_at', 'paired')}, ${ms('revoked_at', 'revoked')}`;
const KEY = `id, tenant, scopes, label, ${ms('created_at', 'created')}, ${ms('expires_at', 'expires')},
  ${ms('revoked_at', 'revoked')}`;
/** `now()` is the same all over a transaction. */
const IS_NEW = 'created_at = now() as is_new';

/** The directory in Postgres. */
export class StoredDirectory implements Directory {
  constructor(private readonly database: Database) {}

  // --- tenants

  async createTenant(id: string): Promise<Changed<Tenant>> {
    checkName('tenant', id);
    const made = await this.#change(
      `insert into tenants (id) values ($1::text) on conflict (id) do nothing returning ${TENANT}`,
      [id],
    );
    const tenant = made ? tenantOf(made) : await this.tenant(id);
    if (tenant?.status !== 'active') throw new RelayError('conflict', 'the tenant is archived: restore it');
    return { ...tenant, isNew: made !== undefined };
  }

  async tenant(id: string): Promise<Tenant | undefined> {
    checkName('tenant', id);
    const [row] = await this.#read(`select ${TENANT} from tenants where id = $1::text`, [id]);
    return row && tenantOf(row);
  }

  async archiveTenant(id: string): Promise<Changed<Tenant>> {
    checkName('tenant', id);
    const row = await this.#settle(
      `insert into tenants (id, status) values ($1::text, 'archived')
       on conflict (id) do update set status = 'archived', changed_at = now() where tenants.status <> 'archived'
       returning ${TENANT}, ${IS_NEW}`,
      `select ${TENANT} from tenants where id = $1::text`,
      [id],
    );
    return { ...tenantOf(row), isNew: row.is_new === true };
  }

  async restoreTenant(id: string): Promise<Tenant | undefined> {
    checkName('tenant', id);
    const row = await this.#change(
      `update tenants set status = 'active', changed_at = now() where id = $1::text and status <> 'active'
       returning ${TENANT}`,
      [id],
    );
    return row ? tenantOf(row) : this.tenant(id);
  }

  async listTenants({ after, limit }: PageOptions = {}): Promise<Page<Tenant>> {
    if (after !== undefined) checkName('after', after);
    const size = checkLimit(limit);
    const rows = await this.#read(
      `select ${TENANT} from tenants where $1::text is null or id > $1::text order by id limit $2::int4`,
      [after ?? null, size + 1],
    );
    return pageOf(rows.map(tenantOf), size, ({ tenant }) => tenant);
  }

  // --- devices

  async createDevice({ isPaired = true, isReplacing = false, ...name }: NewDevice) {
    const token = makeDeviceToken();
    const row = await this.#change(
      `insert into devices (tenant, user_id, id, token_hash, paired_at)
       values ($1::text, $2::text, $3::text, decode($4::text, 'hex'), case when $5::boolean then now() end)
       on conflict (tenant, user_id, id) do update
         set token_hash = excluded.token_hash, paired_at = excluded.paired_at, created_at = now(),
           revoked_up_to = greatest(devices.revoked_up_to, devices.revoked_at), revoked_at = null
         where devices.token_hash is null or devices.revoked_at is not null or $6::boolean
       returning ${DEVICE}`,
      [...partsOf(name), sha256(token).toString('hex'), isPaired, isReplacing],
    );
    if (!row) throw new RelayError('conflict', 'the device has a token: revoke it first, or have it replaced');
    return { ...deviceOf(row), token };
  }

  async pairDevice(name: DeviceName): Promise<Changed<Device>> {
    const row = await this.#change(
      `insert into devices (tenant, user_id, id, paired_at) values ($1::text, $2::text, $3::text, now())
       on conflict (tenant, user_id, id) do update set paired_at = coalesce(devices.paired_at, now())
         where devices.revoked_at is null
       returning ${DEVICE}, ${IS_NEW}`,
      partsOf(name),
    );
    if (!row) throw new RelayError('conflict', 'the device is revoked: create it again');
    return { ...deviceOf(row), isNew: row.is_new === true };
  }

  async unpairDevice(name: DeviceName): Promise<Device | undefined> {
    const row = await this.#change(
      `update devices set paired_at = null where tenant = $1::text and user_id = $2::text and id = $3::text
       returning ${DEVICE}`,
      partsOf(name),
    );
    return row && deviceOf(row);
  }

  async revokeDevice(name: DeviceName): Promise<Changed<Device>> {
    const row = await this.#settle(
      `insert into devices (tenant, user_id, id, revoked_at) values ($1::text, $2::text, $3::text, now())
       on conflict (tenant, user_id, id) do update set revoked_at = now() where devices.revoked_at is null
       returning ${DEVICE}, ${IS_NEW}`,
      `select ${DEVICE} from devices where tenant = $1::text and user_id = $2::text and id = $3::text`,
      partsOf(name),
    );
    return { ...deviceOf(row), isNew: row.is_new === true };
  }

  async listDevices(tenant: string, { after, limit, user }: PageOptions & { readonly user?: string | undefined } = {}) {
    checkName('tenant', tenant);
    if (user !== undefined) checkName('user', user);
    const [afterUser, afterDevice] = after === undefined ? [null, null] : pairOf(after);
    const size = checkLimit(limit);
    const rows = await this.#read(
      `select ${DEVICE} from devices
       where tenant = $1::text and ($2::text is null or user_id = $2::text)
         and ($3::text is null or (user_id, id) > ($3::text, $4::text))
       order by user_id, id limit $5::int4`,
      [tenant, user ?? null, afterUser, afterDevice, size + 1],
    );
    return pageOf(rows.map(deviceOf), size, (device) => scoped(device.user, device.device));
  }

  // --- API keys

  async createKey({ scopes, tenant, label = '', expiresAt }: NewKey) {
    checkScopes(scopes, tenant);
    if (tenant !== undefined) checkName('tenant', tenant);
    if (label !== '' && !isName(label)) throw bad('label', `at most ${MAX_LABEL} characters, no control characters`);
    if (expiresAt !== undefined && !(isTime(expiresAt) && expiresAt > Date.now()))
      throw bad('expiresAt', 'a time to come, in ms since 1970');
    const { id, key } = makeApiKey();
    const row = await this.#change(
      `insert into api_keys (id, tenant, key_hash, scopes, label, expires_at)
       values ($1::text, $2::text, decode($3::text, 'hex'), $4::text[], $5::text, to_timestamp($6::float8 / 1000))
       returning ${KEY}`,
      [id, tenant ?? null, sha256(key).toString('hex'), [...new Set(scopes)], label, expiresAt ?? null],
    );
    return { ...keyOf(row as Row), key };
  }

  async revokeKey(id: string): Promise<KeyEntry | undefined> {
    checkName('id', id);
    const row = await this.#change(
      `update api_keys set revoked_at = now() where id = $1::text and revoked_at is null returning ${KEY}`,
      [id],
    );
    const [known] = row ? [row] : await this.#read(`select ${KEY} from api_keys where id = $1::text`, [id]);
    return known && keyOf(known);
  }

  async listKeys({ after, limit, tenant }: PageOptions & { readonly tenant?: string | undefined } = {}) {
    if (after !== undefined) checkName('after', after);
    if (tenant !== undefined) checkName('tenant', tenant);
    const size = checkLimit(limit);
    const rows = await this.#read(
      `select ${KEY} from api_keys
       where ($1::text is null or id > $1::text) and ($2::text is null or tenant = $2::text)
       order by id limit $3::int4`,
      [after ?? null, tenant ?? null, size + 1],
    );
    return pageOf(rows.map(keyOf), size, ({ id }) => id);
  }

  // --- tokens

  async revokeTokens(revocation: Revocation): Promise<void> {
    const { tenant, expiresAt } = revocation;
    const [kind, id, before] =
      'user' in revocation
        ? (['user', revocation.user, revocation.before] as const)
        : (['token', revocation.token] as const);
    checkName('tenant', tenant);
    checkName(kind, id);
    if (before !== undefined && !(isTime(before) && before <= Date.now() + CLOCK_TOLERANCE_MS))
      throw bad('before', 'a time that has come, in ms since 1970');
    if (expiresAt !== undefined && !isTime(expiresAt)) throw bad('expiresAt', 'a time in ms since 1970');
    await this.#change(
      `insert into revocations (tenant, kind, id, not_before, expires_at)
       values ($1::text, $2::text, $3::text, coalesce(to_timestamp($4::float8 / 1000), now()),
         to_timestamp($5::float8 / 1000))
       on conflict (tenant, kind, id) do update
         set not_before = greatest(revocations.not_before, excluded.not_before),
           expires_at = case when revocations.expires_at is not null and excluded.expires_at is not null
             then greatest(revocations.expires_at, excluded.expires_at) end`,
      [tenant, kind, id, before ?? null, expiresAt ?? null],
    );
    // somebody who revokes is the best that there is of a janitor; an hour, for clocks that differ
    await this.#change(`delete from revocations where expires_at < now() - interval '1 hour'`, []);
  }

  // --- statements

  async #read(text: string, values: readonly unknown[]): Promise<readonly Row[]> {
    try {
      return await this.database.query(text, values);
    } catch (error) {
      throw failureOf(error, { isChange: false });
    }
  }

  async #change(text: string, values: readonly unknown[]): Promise<Row | undefined> {
    try {
      return (await this.database.query(text, values))[0];
    } catch (error) {
      throw failureOf(error, { isChange: true });
    }
  }

  /** A change that returns nothing when it is made already: then what is there. */
  async #settle(change: string, read: string, values: readonly unknown[]): Promise<Row> {
    const row = (await this.#change(change, values)) ?? (await this.#read(read, values))[0];
    if (!row) throw new RelayError('unavailable', 'somebody else changes the same', { mayHaveHappened: false });
    return row;
  }
}

function bad(what: string, wanted: string): RelayError {
  return new RelayError('bad_request', `${what}: wants ${wanted}`);
}

function checkName(what: string, value: unknown): void {
  if (!isName(value)) throw bad(what, '1 to 200 characters without control characters');
}

function checkLimit(limit: number = DEFAULT_LIMIT): number {
  if (!Number.isInteger(limit) || limit < 1 || limit > MAX_LIMIT) throw bad('limit', `1 to ${MAX_LIMIT}`);
  return limit;
}

function checkScopes(scopes: readonly unknown[], tenant: string | undefined): void {
  if (scopes.length === 0 || !scopes.every(isScope))
    throw bad('scopes', 'some of publish, call, read, sessions and admin');
  if (tenant !== undefined && scopes.includes('admin'))
    throw new RelayError('bad_request', 'scopes: admin is about all tenants, and the key would be bound to one');
}

function isTime(value: unknown): boolean {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_TIME;
}

function partsOf({ tenant, user, device }: DeviceName): string[] {
  for (const [what, value] of Object.entries({ tenant, user, device })) checkName(what, value);
  return [tenant, user, device];
}

/** Of `scoped(user, device)`. */
function pairOf(after: string): [string, string] {
  const [user, device, ...rest] = after.split('/').map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return undefined;
    }
  });
  if (!isName(user) || !isName(device) || rest.length > 0) throw bad('after', 'what the page before called next');
  return [user, device];
}

function pageOf<T>(rows: readonly T[], size: number, nameOf: (row: T) => string): Page<T> {
  const page = rows.slice(0, size);
  return { rows: page, ...(rows.length > size && { next: nameOf(page.at(-1) as T) }) };
}

function tenantOf({ id, status, created, changed }: Row): Tenant {
  return {
    tenant: id as string,
    status: status as Tenant['status'],
    createdAt: created as number,
    changedAt: changed as number,
  };
}

function deviceOf({ tenant, user_id, id, has_token, created, paired, revoked }: Row): Device {
  return {
    tenant: tenant as string,
    user: user_id as string,
    device: id as string,
    hasToken: has_token as boolean,
    createdAt: created as number,
    ...(paired !== null && { pairedAt: paired as number }),
    ...(revoked !== null && { revokedAt: revoked as number }),
  };
}

function keyOf({ id, tenant, scopes, label, created, expires, revoked }: Row): KeyEntry {
  return {
    id: id as string,
    ...(tenant !== null && { tenant: tenant as string }),
    scopes: (scopes as readonly unknown[]).filter(isScope) as Scope[],
    label: label as string,
    createdAt: created as number,
    ...(expires !== null && { expiresAt: expires as number }),
    ...(revoked !== null && { revokedAt: revoked as number }),
  };
}
