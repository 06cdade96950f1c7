import { createServer } from 'node:net';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { type ServingOptions, UnreachableError, untilServing } from '../../src/postgres/serving.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { folderOf } from './migrating.js';

const WITHIN_MS = 700;
const OWN = ['0001_admission.sql'];

let server: PostgresProcess;

beforeAll(async () => {
  server = await startPostgres();
  await server.query(`create role app login password 'of-the-app'`);
});
afterAll(() => server.stop());

interface Gate {
  readonly outcome: Promise<readonly string[]>;
  readonly refused: string[];
  readonly stop: () => void;
}

function gate(options: Partial<ServingOptions> & { url: string }): Gate {
  const refused: string[] = [];
  const over = new AbortController();
  onTestFinished(() => over.abort());
  const outcome = untilServing({
    mayMigrate: true,
    withinMs: WITHIN_MS,
    onRefused: (code) => refused.push(code),
    signal: over.signal,
    ...options,
  });
  outcome.catch(() => {});
  return { outcome, refused, stop: () => over.abort() };
}

/** As a user who is no superuser. */
const asApp = (url: string): string => url.replace(/\/\/.*@/, '//app:of-the-app@');
const nameOf = (url: string): string => new URL(url).pathname.slice(1);

async function failure(work: Promise<unknown>): Promise<Error> {
  const error: unknown = await work.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(FatalError);
  const { message } = error as Error;
  expect(message).not.toMatch(/\n|a-password-of|of-the-app/);
  return error as Error;
}

describe('a start on Postgres', () => {
  it('brings the schema up to date', async () => {
    const url = await server.createDatabase();
    expect(await gate({ url }).outcome).toEqual(OWN);
    expect(await gate({ url }).outcome).toEqual([]);
    expect(await gate({ url, mayMigrate: false }).outcome).toEqual([]);
  });

  it('on an old schema that it may not touch ends, and says what is missing', async () => {
    const url = await server.createDatabase();
    const error = await failure(gate({ url, mayMigrate: false }).outcome);
    expect(error.message).toContain('without 0001_admission.sql: run holdfast migrate');
    expect(await server.query(`select to_regclass('tenants') as there`, [], url)).toEqual([{ there: null }]);
  });

  it('where nobody listens gives up in time', async () => {
    const startedAt = performance.now();
    const port = await freePort();
    const error = await failure(gate({ url: server.urlOf('postgres', port) }).outcome);
    expect(error).toBeInstanceOf(UnreachableError);
    expect(error.message).toBe(
      `Postgres at 127.0.0.1:${port} cannot be reached: connect ECONNREFUSED 127.0.0.1:${port}`,
    );
    expect(performance.now() - startedAt).toBeLessThan(WITHIN_MS + 1500);
  });

  it('where nobody answers gives up in time', async () => {
    const silent = createServer(() => {}).listen(0, '127.0.0.1');
    onTestFinished(() => void silent.close());
    await eventually(() => silent.listening);
    const { port } = silent.address() as { port: number };
    const startedAt = performance.now();
    expect(await failure(gate({ url: server.urlOf('postgres', port) }).outcome)).toBeInstanceOf(UnreachableError);
    expect(performance.now() - startedAt).toBeLessThan(WITHIN_MS + 2500);
  });

  it.each([
    [
      'the password is wrong',
      (url: string) => url.replace('a-password-of-tests', 'another'),
      /password authentication failed/,
    ],
    ['a password is missing', (url: string) => url.replace(':a-password-of-tests', ''), /password must be a string/],
    ['the database does not exist', (url: string) => `${url}_not`, /database ".*" does not exist/],
    ['the user may not create tables', asApp, /permission denied for schema public/],
  ])('ends at once when %s', async (_, change, text) => {
    const startedAt = performance.now();
    const error = await failure(gate({ url: change(await server.createDatabase()), withinMs: 60_000 }).outcome);
    expect(error).not.toBeInstanceOf(UnreachableError);
    expect(error.message).toMatch(text);
    expect(performance.now() - startedAt).toBeLessThan(3000);
  });

  it('waits for a database that is read-only, and tells it once', async () => {
    const url = await server.createDatabase();
    await server.query(`alter database ${nameOf(url)} set default_transaction_read_only = on`);
    const { outcome, refused } = gate({ url });
    await eventually(() => expect(refused).toEqual(['25006']));
    await new Promise((resolve) => setTimeout(resolve, 1.5 * WITHIN_MS));
    await server.query(`alter database ${nameOf(url)} set default_transaction_read_only = off`);
    expect(await outcome).toEqual(OWN);
    expect(refused).toEqual(['25006']);
  });

  it('waits for a database that has no connection left', async () => {
    const url = await server.createDatabase();
    await server.query(`grant create on schema public to app`, [], url);
    await server.query(`alter database ${nameOf(url)} connection limit 0`);
    const { outcome, refused } = gate({ url: asApp(url) });
    await eventually(() => expect(refused).toEqual(['53300']));
    await server.query(`alter database ${nameOf(url)} connection limit -1`);
    expect(await outcome).toEqual(OWN);
  });

  it('waits for a server that shuts down, and goes on with the one that comes up', async () => {
    await using other = await startPostgres();
    const url = await other.createDatabase();
    const busy = other.query('select pg_sleep(1)');
    await eventually(async () =>
      expect(await other.query(`select from pg_stat_activity where query like 'select pg_s%'`)).toHaveLength(1),
    );
    const down = other.shutDown('smart');
    const { outcome, refused } = gate({ url, withinMs: 10_000 });
    await eventually(() => expect(refused).toEqual(['57P03']));
    await Promise.all([busy, down]);
    await other.start();
    expect(await outcome).toEqual(OWN);
  });

  it('waits for another process that migrates, whatever limits its role has', async () => {
    const url = await server.createDatabase();
    await server.query(`alter role app set statement_timeout = '300ms'; alter role app set lock_timeout = '300ms'`);
    await server.query(
      `grant create on schema public to app; alter default privileges grant select, insert on tables to app`,
      [],
      url,
    );
    const slow = await folderOf({ '0001_slow.sql': 'select pg_sleep(1.5)' });
    const first = gate({ url, folder: slow });
    await eventually(async () =>
      expect(await server.query(`select from pg_locks where locktype = 'advisory'`)).toHaveLength(1),
    );
    let waited = 0;
    const second = gate({ url: asApp(url), folder: slow, onWaiting: () => waited++ });
    await eventually(() => expect(waited).toBe(1));
    expect(await first.outcome).toEqual(['0001_slow.sql']);
    expect(await second.outcome).toEqual([]);
  });

  it('whose server falls silent while it migrates gives up, and leaves nothing', async () => {
    const url = await server.createDatabase();
    await using proxy = await startTcpProxy(server.port);
    const slow = await folderOf({ '0001_slow.sql': 'create table slow (); select pg_sleep(2)' });
    const { outcome } = gate({ url: server.urlOf(nameOf(url), proxy.port), folder: slow });
    await eventually(async () =>
      expect(await server.query(`select from pg_locks where locktype = 'advisory'`)).toHaveLength(1),
    );
    proxy.blackhole(true);
    expect(await failure(outcome)).toBeInstanceOf(UnreachableError);
    proxy.blackhole(false);
    await eventually(async () =>
      expect(await server.query(`select from pg_locks where locktype = 'advisory'`)).toEqual([]),
    );
    expect(await server.query(`select to_regclass('slow') as there`, [], url)).toEqual([{ there: null }]);
  });

  it('that is stopped ends at once, also while it migrates', async () => {
    const slow = await folderOf({ '0001_slow.sql': 'select pg_sleep(20)' });
    const { outcome, stop } = gate({ url: await server.createDatabase(), folder: slow });
    await eventually(async () =>
      expect(await server.query(`select from pg_locks where locktype = 'advisory'`)).toHaveLength(1),
    );
    const startedAt = performance.now();
    stop();
    expect((await failure(outcome)).message).toBe('stopped while waiting for Postgres');
    expect(performance.now() - startedAt).toBeLessThan(1500);
  });
});
