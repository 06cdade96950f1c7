import { Client } from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type ApiCaller, ApiKeys } from '../../src/admission/api-keys.js';
import { Authenticator } from '../../src/admission/authenticator.js';
import { DeviceTokens } from '../../src/admission/device-tokens.js';
import { type Identity, TokenVerifier } from '../../src/admission/identity.js';
import { makeApiKey, makeDeviceToken, sha256 } from '../../src/admission/secret-text.js';
import { StoredDirectory } from '../../src/admission/stored-directory.js';
import { StoredKeys } from '../../src/admission/stored-keys.js';
import { silentLogger as logger } from '../../src/core/ports.js';
import type { Database } from '../../src/postgres/database.js';
import { migrate } from '../../src/postgres/migrations.js';
import { Postgres } from '../../src/postgres/pool.js';
import { eventually } from '../harness/poll.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { TEST_JWT_SECRET, token } from '../harness/token.js';

const OF_ENVIRONMENT = 'a-key-of-the-environment-of-32-characters';

let server: PostgresProcess;
let database: Database;
let directory: StoredDirectory;
/** Look-ups of secrets that the server was asked for. */
let asked = 0;
let isFresh = true;

beforeAll(async () => {
  server = await startPostgres();
  const pool = new Postgres({ url: server.url, size: 4 });
  await migrate(pool);
  const { queryUntil } = pool;
  pool.queryUntil = (...question) => {
    asked++;
    return queryUntil.apply(pool, question);
  };
  database = pool;
  directory = new StoredDirectory(database);
});
afterAll(async () => {
  await database?.close();
  await server?.stop();
});
beforeEach(() => {
  isFresh = true;
  asked = 0;
});

interface Kind {
  readonly name: string;
  /** A new secret that is good. */
  make(): Promise<{ secret: string; revoke(): Promise<unknown>; forgetIn(checks: Checks): void }>;
  /** Well-formed, and nobody's. */
  readonly forge: () => string;
}

interface Checks {
  readonly keys: StoredKeys;
  readonly tokens: DeviceTokens;
  readonly identify: (secret: string) => Promise<ApiCaller | Identity>;
}

function newChecks(): Checks {
  const keys = new StoredKeys({ database, isFresh: () => isFresh, logger });
  const deviceTokens = new DeviceTokens({ database, isFresh: () => isFresh, logger });
  const apiKeys = new ApiKeys([{ key: OF_ENVIRONMENT, tenant: undefined }], keys);
  const verifier = new TokenVerifier({ secret: TEST_JWT_SECRET, algorithm: 'RS256' });
  const authenticator = new Authenticator({ verifier, deviceTokens });
  const identify = (secret: string) =>
    secret.startsWith('hfd_') || secret.startsWith('ey')
      ? authenticator.identify(secret)
      : apiKeys.identify(`Bearer ${secret}`);
  return { keys, tokens: deviceTokens, identify };
}

const outcome = (done: Promise<unknown>): Promise<string> =>
  done.then(
    () => 'in',
    ({ code }) => code,
  );

let devices = 0;
const API_KEY: Kind = {
  name: 'an API key',
  async make() {
    const { id, key } = await directory.createKey({ scopes: ['read'], tenant: 'acme' });
    return { secret: key, revoke: () => directory.revokeKey(id), forgetIn: ({ keys }) => keys.forget(id) };
  },
  forge: () => makeApiKey().key,
};
const DEVICE_TOKEN: Kind = {
  name: 'a device token',
  async make() {
    const name = { tenant: 'acme', user: 'a/da', device: `phone ${++devices}` };
    const made = await directory.createDevice(name);
    return {
      secret: made.token,
      revoke: () => directory.revokeDevice(name),
      forgetIn: ({ tokens }) => tokens.forget(name.tenant, name.user, name.device),
    };
  },
  forge: makeDeviceToken,
};

describe.each([API_KEY, DEVICE_TOKEN])('$name', ({ make, forge }) => {
  test('is looked up once, and known from then on while notices are heard', async () => {
    const checks = newChecks();
    const { secret } = await make();
    const first = await checks.identify(secret);
    for (let round = 0; round < 3; round++) expect(await checks.identify(secret)).toEqual(first);
    expect(asked).toBe(1);
    isFresh = false;
    await checks.identify(secret);
    await checks.identify(secret);
    expect(asked).toBe(3);
    isFresh = true;
    await checks.identify(secret);
    expect(asked).toBe(4);
  });

  test('that was revoked is refused as soon as the notice is heard', async () => {
    const checks = newChecks();
    const { secret, revoke, forgetIn } = await make();
    await checks.identify(secret);
    await revoke();
    forgetIn(checks);
    expect(await outcome(checks.identify(secret))).toBe('unauthorized');
    await expect(checks.identify(secret)).rejects.toThrow(/revoked/);
  });

  test('that is revoked while it is looked up is not remembered as good', async () => {
    const checks = newChecks();
    const { secret, revoke, forgetIn } = await make();
    const blocker = new Client(server.url);
    await blocker.connect();
    try {
      await blocker.query('begin; lock table api_keys, devices in access exclusive mode');
      const looking = outcome(checks.identify(secret));
      await eventually(async () => {
        const [row] = await server.query('select count(*)::int4 as waiting from pg_locks where not granted');
        return row?.waiting === 1;
      });
      // the notice of a change that the look-up, once it goes on, may or may not see
      forgetIn(checks);
      await blocker.query('commit');
      expect(await looking).toBe('in');
    } finally {
      await blocker.end();
    }
    await revoke();
    expect(await outcome(checks.identify(secret))).toBe('unauthorized');
    expect(asked).toBe(2);
  });

  test('that nobody was given is refused, each time', async () => {
    const { identify } = newChecks();
    const secret = forge();
    expect([await outcome(identify(secret)), await outcome(identify(secret))]).toEqual([
      'unauthorized',
      'unauthorized',
    ]);
    expect(asked).toBe(2);
  });

  test('that is mistyped or cut short is refused, and nobody is asked', async () => {
    const { identify } = newChecks();
    const { secret } = await make();
    const last = secret.at(-1) === 'a' ? 'b' : 'a';
    for (const wrong of [secret.slice(0, -1), `${secret}a`, secret.slice(0, -1) + last, secret.slice(0, 9)])
      expect(await outcome(identify(wrong)), wrong).toBe('unauthorized');
    expect(asked).toBe(0);
  });

  test('that cannot be looked up is unavailable, good or not, and never in', async () => {
    const checks = newChecks();
    const { secret } = await make();
    const unseen = newChecks();
    await checks.identify(secret);
    await server.shutDown('immediate');
    try {
      isFresh = false;
      for (const one of [secret, forge()])
        for (const { identify } of [checks, unseen]) expect(await outcome(identify(one))).toBe('unavailable');
      expect(await outcome(unseen.identify(OF_ENVIRONMENT))).toBe('in');
      expect(await outcome(unseen.identify(await token({ sub: 'ada' })))).toBe('in');
    } finally {
      await server.start();
    }
    await eventually(async () => (await outcome(unseen.identify(secret))) === 'in', { what: 'the good one to be in' });
  });

  test('that cannot be looked up by a fault of ours is unavailable too', async () => {
    const { identify } = newChecks();
    const { secret } = await make();
    await database.query('alter table api_keys rename to away_keys; alter table devices rename to away_devices');
    try {
      expect(await outcome(identify(secret))).toBe('unavailable');
    } finally {
      await database.query('alter table away_keys rename to api_keys; alter table away_devices rename to devices');
    }
  });
});

describe('an API key', () => {
  test('says whose it is and what it may', async () => {
    const { identify } = newChecks();
    const bound = await directory.createKey({ scopes: ['publish', 'read'], tenant: 'acme' });
    const free = await directory.createKey({ scopes: ['admin'] });
    expect(await identify(bound.key)).toEqual({
      tenant: 'acme',
      fingerprint: bound.id,
      scopes: new Set(['publish', 'read']),
    });
    expect(await identify(free.key)).toMatchObject({ tenant: undefined, scopes: new Set(['admin']) });
  });

  test('of another secret is unknown, whatever became of the one whose id it has', async () => {
    const { identify } = newChecks();
    const [real, forged] = [makeApiKey(), makeApiKey()];
    const insert = "insert into api_keys (id, key_hash, scopes) values ($1, decode($2, 'hex'), '{read}')";
    await database.query(insert, [forged.id, sha256(real.key).toString('hex')]);
    const unknown = { code: 'unauthorized', message: 'unknown API key' };
    await expect(identify(forged.key)).rejects.toMatchObject(unknown);
    await directory.revokeKey(forged.id);
    await expect(identify(forged.key)).rejects.toMatchObject(unknown);
    await expect(identify(real.key)).rejects.toMatchObject(unknown);
  });

  test('ends when it expires, by the clock of the database', async () => {
    const { identify } = newChecks();
    const { key } = await directory.createKey({ scopes: ['read'], expiresAt: Date.now() + 1000 });
    expect(await outcome(identify(key))).toBe('in');
    await eventually(async () => (await outcome(identify(key))) === 'unauthorized', { withinMs: 3000 });
    await expect(identify(key)).rejects.toThrow('the API key has expired');
  });

  test('that somebody wrote by hand is never more than it can be', async () => {
    const { identify } = newChecks();
    const by = async (tenant: string | null, scopes: string) => {
      const { id, key } = makeApiKey();
      await database.query(
        "insert into api_keys (id, tenant, key_hash, scopes, expires_at) values ($1, $2, decode($3, 'hex'), $4, 'infinity')",
        [id, tenant, sha256(key).toString('hex'), scopes],
      );
      return key;
    };
    const bound = await identify(await by('acme', '{admin,read,everything}'));
    expect(bound).toMatchObject({ tenant: 'acme', scopes: new Set(['read']) });
    expect(await outcome(identify(await by('', '{admin}')))).toBe('unauthorized');
    expect(await outcome(identify(await by('x'.repeat(201), '{admin}')))).toBe('unauthorized');
  });
});

describe('a device token', () => {
  test('proves what a token of the issuer for the same device does, and does not expire', async () => {
    const { identify } = newChecks();
    const name = { tenant: 'acme', user: 'a*/da', device: 'ta b' };
    const { token: secret, createdAt } = await directory.createDevice(name);
    const { tenant, user: sub, device } = name;
    const byIssuer = (await identify(await token({ sub, tenant, device }))) as Identity;
    expect(await identify(secret)).toEqual({
      ...byIssuer,
      tokenId: undefined,
      issuedAt: createdAt,
      isByDeviceToken: true,
      expiresAt: Number.POSITIVE_INFINITY,
    });
  });

  test('that was replaced is nobody’s', async () => {
    const { identify, tokens } = newChecks();
    const name = { tenant: 'acme', user: 'ada', device: 'replaced' };
    const first = await directory.createDevice(name);
    expect(await outcome(identify(first.token))).toBe('in');
    const second = await directory.createDevice({ ...name, isReplacing: true });
    // also where the look-up of the new one overtakes the notice
    expect(await outcome(identify(second.token))).toBe('in');
    expect(await outcome(identify(first.token))).toBe('unauthorized');
    tokens.forgetAll();
    expect(await outcome(identify(second.token))).toBe('in');
  });

  test('of a row that is no device is nobody’s', async () => {
    const { identify } = newChecks();
    const secret = makeDeviceToken();
    await database.query(
      "insert into devices (tenant, user_id, id, token_hash) values ('acme', '', 'd', decode($1, 'hex'))",
      [sha256(secret).toString('hex')],
    );
    expect(await outcome(identify(secret))).toBe('unauthorized');
  });

  test('without a database is refused, and says why', async () => {
    const verifier = new TokenVerifier({ secret: TEST_JWT_SECRET, algorithm: 'RS256' });
    const authenticator = new Authenticator({ verifier, deviceTokens: undefined });
    await expect(authenticator.identify(makeDeviceToken())).rejects.toMatchObject({
      code: 'unauthorized',
      message: 'device tokens are not known here: the relay has no database',
    });
    expect(await authenticator.identify(await token({ sub: 'ada' }))).toMatchObject({ user: 'ada' });
    for (const none of [undefined, '', 5, ['hfd_'], 'hfd'])
      expect(await outcome(authenticator.identify(none))).toBe('unauthorized');
  });
});
