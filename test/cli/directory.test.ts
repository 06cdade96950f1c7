import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { migrate } from '../../src/postgres/migrations.js';
import { Postgres } from '../../src/postgres/pool.js';
import { freePort } from '../harness/free-port.js';
import { type Pod, startPod, TEST_API_KEY } from '../harness/pod.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { type Env, type Run, run as runAlone } from './run.js';
import { runHere } from './run-here.js';

const TIME = /\d{4}-\d\d-\d\dT[\d:.]+Z/;

let redis: RedisProcess;
let postgres: PostgresProcess;
let pod: Pod;
/** The two ways to the same directory. */
let ways: Readonly<Record<string, Env>>;
let names = 0;

beforeAll(async () => {
  [redis, postgres] = await Promise.all([startRedis({ aof: 'off' }), startPostgres()]);
  pod = await startPod({ redisUrl: redis.url, name: 'pod', env: { DATABASE_URL: postgres.url } });
  ways = {
    'in the database': { DATABASE_URL: postgres.url },
    'through a relay': { HOLDFAST_URL: `${pod.url}/`, HOLDFAST_API_KEY: TEST_API_KEY },
  };
});
afterAll(async () => {
  await pod?.stop();
  await Promise.all([redis?.stop(), postgres?.stop()]);
});

const newName = (name: string): string => `${name} ${++names}/½`;
/** With every time the same. */
const shape = ({ out }: Run): string => out.replace(new RegExp(TIME, 'g'), 'TIME');
const line = (text: string): object => ({ code: 1, out: '', err: `holdfast: ${text}\n` });

describe.each(['in the database', 'through a relay'])('%s', (way) => {
  const run = (...args: string[]): Promise<Run> => runHere(args, ways[way]);

  it('a tenant is created, archived and restored', async () => {
    const tenant = newName('tenant');
    const row = (status: string): string =>
      [
        `${'TENANT'.padEnd(tenant.length)}  ${'STATUS'.padEnd(status.length)}  ${'CREATED'.padEnd(24)}  CHANGED\n`,
        `${tenant}  ${status.padEnd(6)}  TIME  TIME\n`,
      ].join('');
    const create = await run('tenants', 'create', tenant);
    expect({ ...create, out: shape(create) }).toMatchObject({ code: 0, out: row('active'), err: '' });
    expect(await run('tenants', 'create', tenant)).toMatchObject({ code: 0, out: create.out });
    expect(shape(await run('tenants', 'archive', tenant))).toBe(row('archived'));
    expect(await run('tenants', 'create', tenant)).toMatchObject(line('the tenant is archived: restore it'));
    const { out } = await run('tenants', 'list', '-o', 'json');
    expect(JSON.parse(out)).toContainEqual({
      tenant,
      status: 'archived',
      createdAt: expect.stringMatching(TIME),
      changedAt: expect.stringMatching(TIME),
    });
    expect(shape(await run('tenants', 'restore', tenant))).toBe(row('active'));
  });

  it('an archived tenant of which nothing was known may be misspelt, and a restored one is', async () => {
    const tenant = newName('tenant');
    expect(await run('tenants', 'restore', tenant)).toMatchObject(line(`nothing is known of tenant "${tenant}"`));
    expect(await run('tenants', 'archive', tenant)).toMatchObject({
      code: 0,
      out: expect.stringContaining('archived'),
      err: `holdfast: nothing was known of tenant "${tenant}" before: is it spelt right?\n`,
    });
  });

  it('a device’s token stands alone on its line', async () => {
    const device = ['ada', newName('phone'), '-t', newName('acme')];
    const first = await run('devices', 'create', ...device);
    expect(first).toMatchObject({ code: 0, out: expect.stringMatching(/^hfd_\w{49}\n$/), err: '' });
    expect(await run('devices', 'create', ...device)).toMatchObject(
      line('the device has a token: revoke it first, or have it replaced'),
    );
    const { out } = await run('devices', 'create', ...device, '--replace', '--no-paired', '-o', 'json');
    expect(JSON.parse(out)).toEqual({
      user: device[0],
      device: device[1],
      tenant: device[3],
      hasToken: true,
      createdAt: expect.stringMatching(TIME),
      token: expect.stringMatching(/^hfd_/),
    });
    expect(out).not.toContain(first.out.trim());
  });

  it('devices are paired, unpaired, listed, and revoked with --yes only', async () => {
    const tenant = newName('acme');
    const run1 = (verb: string, ...args: string[]) => run('devices', verb, ...args, '-t', tenant);
    expect(await run1('unpair', 'ada', 'tv')).toMatchObject(line('nothing is known of device "tv" of "ada"'));
    expect(await run1('pair', 'ada', 'tv')).toMatchObject({ code: 0, err: '' });
    await run1('create', 'bob', 'tv', '--no-paired');
    expect(await run1('revoke', 'bob', 'tv')).toMatchObject(
      line(`this would revoke device "tv" of "bob" in tenant "${tenant}", for good; with --yes it is done`),
    );
    expect(shape(await run1('list'))).toBe(
      [
        `USER  DEVICE  TOKEN   ${'CREATED'.padEnd(24)}  ${'PAIRED'.padEnd(24)}  REVOKED`,
        `ada   tv      issuer  TIME  TIME  -`,
        `bob   tv      own     TIME  ${'-'.padEnd(24)}  -\n`,
      ].join('\n'),
    );
    expect(await run1('revoke', 'bob', 'tv', '--yes')).toMatchObject({ code: 0, err: '' });
    expect(shape(await run1('list', '-u', 'bob'))).toMatch(/\nbob {3}tv {6}own {4}TIME {2}- +TIME\n$/);
    expect(await run1('pair', 'bob', 'tv')).toMatchObject(line('the device is revoked: create it again'));
  });

  it('an API key stands alone on its line, and is revoked with --yes only', async () => {
    const tenant = newName('acme');
    const made = await run('keys', 'create', '-s', 'publish', 'read', '-t', tenant, '-l', 'the shop', '--ttl', '90d');
    expect(made).toMatchObject({ code: 0, out: expect.stringMatching(/^hf_\w{12}_\w{49}\n$/), err: '' });
    const id = made.out.slice(3, 15);
    const { out } = await run('keys', 'list', '-t', tenant);
    expect(out).toMatch(new RegExp(`^ID .*\n${id}  ${tenant}  publish,read  the shop  .*Z  .*Z  -\n$`));
    expect(out).not.toContain(made.out.slice(16, 40));
    expect(await run('keys', 'revoke', id)).toMatchObject(
      line(`this would revoke API key "${id}", for good; with --yes it is done`),
    );
    expect(await run('keys', 'revoke', id, '--yes')).toMatchObject({ code: 0, err: '' });
    const [entry] = JSON.parse((await run('keys', 'list', '-t', tenant, '-o', 'json')).out);
    expect(entry).toMatchObject({ id, scopes: ['publish', 'read'], revokedAt: expect.stringMatching(TIME) });
    expect(await run('keys', 'revoke', 'nobody', '--yes')).toMatchObject(line('nothing is known of API key "nobody"'));
  });

  it('tokens are revoked with --yes only', async () => {
    const tenant = newName('acme');
    const revoke = (...args: string[]) => run('tenants', 'revoke', tenant, ...args);
    const kept = () =>
      postgres.query(
        'select kind, id, extract(epoch from not_before)::int8::text as before from revocations where tenant = $1 order by kind',
        [tenant],
      );
    expect(await revoke('-u', 'ada')).toMatchObject(
      line(`this would revoke the tokens of "ada" of tenant "${tenant}", for good; with --yes it is done`),
    );
    expect(await kept()).toEqual([]);
    expect(await revoke('-u', 'ada', '--before', '2020-01-01', '--yes')).toMatchObject({ code: 0, out: '', err: '' });
    expect(await revoke('--token', 'the-jti', '--keep', '30d', '--yes')).toMatchObject({ code: 0, out: '', err: '' });
    expect(await kept()).toMatchObject([
      { kind: 'token', id: 'the-jti' },
      { kind: 'user', id: 'ada', before: '1577836800' },
    ]);
  });

  it.each([
    [['tenants', 'revoke', 'acme', '--yes'], 'wants one of --user and --token'],
    [
      ['tenants', 'revoke', 'a', '-u', 'b', '--before', 'soon'],
      '--before: wants a time (ISO 8601 or ms) or an age (10m), got "soon"',
    ],
    [['tenants', 'revoke', 'a', '-u', 'b', '--keep', 'long'], '--keep: wants a duration such as 30d, got "long"'],
    [['keys', 'create', '-s', 'read', '--ttl', '1'], '--ttl: wants a duration such as 12h or 90d, got "1"'],
  ])('%j is a line', async (args, text) => {
    expect(await run(...args)).toMatchObject(line(text));
  });

  it.each([
    [['keys', 'create', '-s', 'root'], /scopes/],
    [['tenants', 'create', ''], /tenant:? wants 1 to 200 characters/],
    [['tenants', 'archive', ''], /wants 1 to 200 characters/],
    [['devices', 'revoke', 'a\nb', 'c', '--yes'], /wants 1 to 200 characters/],
  ])('%j is a line too', async (args, text) => {
    const { code, out, err } = await run(...args);
    expect({ code, out }).toEqual({ code: 1, out: '' });
    expect(err).toMatch(/^holdfast: [^\n]*\n$/);
    expect(err).toMatch(text);
  });
});

// devices: test/cli/start.test.ts
describe.concurrent('as a process', () => {
  it.each(['tenants', 'keys'])('%s list ends by itself', async (command) => {
    const { code, out, err } = await runAlone([command, 'list'], { DATABASE_URL: postgres.url });
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(out).toMatch(/^[A-Z]+ +[A-Z]/);
  });
});

it('a Postgres that is away is a line, with exit code 2', async () => {
  const place = `127.0.0.1:${await freePort()}`;
  expect(await runHere(['tenants', 'list'], { DATABASE_URL: `postgres://a:secret@${place}/b` })).toMatchObject({
    code: 2,
    out: '',
    err: `holdfast: Postgres at ${place}: connect ECONNREFUSED ${place}\n`,
  });
});

it('a relay that is away is a line, with exit code 2', async () => {
  const url = `http://127.0.0.1:${await freePort()}`;
  const { code, out, err } = await runHere(['tenants', 'list', '--url', url], { HOLDFAST_API_KEY: TEST_API_KEY });
  expect({ code, out }).toEqual({ code: 2, out: '' });
  expect(err).toMatch(new RegExp(`^holdfast: the relay at ${url} cannot be asked: .*ECONNREFUSED.*\n$`));
});

it('a relay wants a key that may administer', async () => {
  const { url } = pod;
  expect(await runHere(['keys', 'list', '--url', url])).toMatchObject(
    line('--url: wants a key with the scope admin in HOLDFAST_API_KEY'),
  );
  const { out: key } = await runHere(['keys', 'create', '-s', 'read'], ways['in the database']);
  for (const [given, text] of [
    [key.trim(), 'the key lacks the scope admin'],
    ['a-key-that-nobody-knows-of-32-characters', 'unknown API key'],
  ])
    expect(await runHere(['keys', 'list', '--url', url], { HOLDFAST_API_KEY: given })).toMatchObject(
      line(text as string),
    );
  expect(await runHere(['keys', 'list', '--url', 'nowhere'])).toMatchObject(
    line('--url: wants http://host:port or https://…, got "nowhere"'),
  );
});

it('a name that no path can hold is said to be one, and no other is changed', async () => {
  for (const tenant of ['.', '..'])
    expect(await runHere(['tenants', 'archive', tenant], ways['through a relay'])).toMatchObject(
      line(`"${tenant}" cannot be named over HTTP: say which Postgres with DATABASE_URL`),
    );
  expect(await runHere(['tenants', 'archive', '..'], ways['in the database'])).toMatchObject({ code: 0 });
});

it('a database without tables is a line', async () => {
  const url = await postgres.createDatabase();
  expect(await runHere(['tenants', 'list', '--database-url', url])).toMatchObject(
    line('the database has no tables of the relay yet: holdfast migrate'),
  );
  const database = new Postgres({ url, size: 1 });
  await migrate(database);
  await database.close();
  // what is said at the command line goes before the environment
  expect(await runHere(['tenants', 'list', '--database-url', url], { ...ways['through a relay'] })).toMatchObject({
    code: 0,
    out: 'TENANT  STATUS  CREATED  CHANGED\n',
  });
});

it('without any of them says how', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'holdfast-cli-'));
  try {
    expect(await runHere(['devices', 'list'], { HOLDFAST_DATA_DIR: dir })).toMatchObject(
      line(
        `no relay runs on ${dir}: start one with npm start, or say which Postgres with --database-url or DATABASE_URL, or which relay with --url`,
      ),
    );
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
});
