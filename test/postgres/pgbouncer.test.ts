import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import { Postgres } from '../../src/postgres/pool.js';
import { untilServing } from '../../src/postgres/serving.js';
import { type PgBouncer, startPgBouncer } from '../harness/pgbouncer.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';

let server: PostgresProcess;
let bouncer: PgBouncer;

beforeAll(async () => {
  server = await startPostgres();
  bouncer = await startPgBouncer(server);
});
afterAll(async () => {
  await bouncer[Symbol.asyncDispose]();
  await server.stop();
});

const start = (url: string, givenAs?: string): Promise<readonly string[]> =>
  untilServing({
    url,
    givenAs,
    mayMigrate: true,
    withinMs: 3000,
    onRefused: (_, reason) => {
      throw new Error(reason);
    },
    signal: new AbortController().signal,
  });

/** A new database, through the PgBouncer. */
async function freshUrl(): Promise<string> {
  return server.urlOf(new URL(await server.createDatabase()).pathname.slice(1), bouncer.port);
}

describe('behind a PgBouncer that pools transactions', () => {
  it('a URL that does not say so ends the start, and the line says what to add', async () => {
    const started = start(await freshUrl());
    await expect(started).rejects.toThrow(FatalError);
    await expect(started).rejects.toThrow(/^PgBouncer at 127\.0\.0\.1:\d+: add \?pgbouncer=true to DATABASE_URL/);
    const byFlag = start(await freshUrl(), '--database-url');
    await expect(byFlag).rejects.toThrow(/: add \?pgbouncer=true to --database-url /);
  });

  it('starts that race migrate once', async () => {
    const url = `${await freshUrl()}?pgbouncer=true`;
    const applied = await Promise.all(Array.from({ length: 4 }, () => start(url)));
    expect(applied.flat()).toEqual(['0001_admission.sql']);
  });

  it('statements and transactions work, more than it has connections', async () => {
    const url = `${await freshUrl()}?pgbouncer=true`;
    await start(url);
    const database = new Postgres({ url, size: 8 });
    onTestFinished(() => database.close());
    const ids = Array.from({ length: 40 }, (_, n) => `t${n}`);
    await Promise.all(
      ids.map((id) => database.transaction(({ query }) => query('insert into tenants (id) values ($1)', [id]))),
    );
    const found = await Promise.all(ids.map((id) => database.query('select id from tenants where id = $1', [id])));
    expect(found.map(([row]) => row?.id)).toEqual(ids);
    await database.ping();
  });
});
