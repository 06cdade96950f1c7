import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { FatalError } from '../../src/core/errors.js';
import type { Database } from '../../src/postgres/database.js';
import { migrate, schemaState } from '../../src/postgres/migrations.js';
import { Postgres } from '../../src/postgres/pool.js';
import { eventually } from '../harness/poll.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';
import { type Files, folderOf, migrateTogether } from './migrating.js';

let server: PostgresProcess;

beforeAll(async () => {
  server = await startPostgres();
});
afterAll(() => server.stop());

/** On a database of its own. */
async function fresh(): Promise<Database> {
  const database = new Postgres({ url: await server.createDatabase(), size: 2 });
  onTestFinished(() => database.close());
  return database;
}

async function applied(database: Database, files: Files): Promise<string> {
  const folder = await folderOf(files);
  await migrate(database, { folder });
  return folder;
}

const A = { '0001_a.sql': 'create table a (id int);\ninsert into a values (1);' };
const B = { '0002_b.sql': 'insert into a values (2)' };
const C = { '0003_c.sql': 'insert into a values (3)' };

const idsIn = async (database: Database): Promise<unknown[]> =>
  (await database.query('select id from a order by id')).map(({ id }) => id);

describe('migrations', () => {
  it('are applied in order, once each', async () => {
    const database = await fresh();
    const folder = await folderOf({ ...B, ...A });
    expect(await schemaState(database, { folder })).toEqual({ is: 'old', missing: ['0001_a.sql', '0002_b.sql'] });
    expect(await migrate(database, { folder })).toEqual(['0001_a.sql', '0002_b.sql']);
    expect(await migrate(database, { folder })).toEqual([]);
    expect(await schemaState(database, { folder })).toEqual({ is: 'current' });
    await writeFile(join(folder, '0003_c.sql'), C['0003_c.sql']);
    expect(await migrate(database, { folder })).toEqual(['0003_c.sql']);
    expect(await idsIn(database)).toEqual([1, 2, 3]);
  });

  it('leave nothing when one of them fails, and say which', async () => {
    const database = await fresh();
    const folder = await folderOf({
      ...A,
      '0002_wrong.sql': 'insert into a values (2); insert into nowhere values (1)',
    });
    const failed = migrate(database, { folder });
    await expect(failed).rejects.toThrow(FatalError);
    await expect(failed).rejects.toThrow(/^migration 0002_wrong\.sql failed: .*"nowhere".*$/);
    expect(await database.query(`select to_regclass('a') as a, to_regclass('holdfast_migrations') as own`)).toEqual([
      { a: null, own: null },
    ]);
  });

  it.each<[string, Files, RegExp]>([
    ['was edited', { '0001_a.sql': 'create table a (id int8)', ...B }, /^migration 0001_a\.sql was edited after/],
    ['came late', { ...A, ...B, '0000_late.sql': 'select 1' }, /^migration 0000_late\.sql comes before 0002_b\.sql/],
    [
      'took a number',
      { ...A, '0002_other.sql': 'select 1' },
      /^migration 0002_other\.sql has the number of 0002_b\.sql/,
    ],
  ])('with a file that %s are refused, and the data stays as it is', async (_, files, text) => {
    const database = await fresh();
    await applied(database, { ...A, ...B });
    const folder = await folderOf(files);
    await expect(migrate(database, { folder })).rejects.toThrow(FatalError);
    await expect(migrate(database, { folder })).rejects.toThrow(text);
    await expect(schemaState(database, { folder })).rejects.toThrow(text);
    expect(await idsIn(database)).toEqual([1, 2]);
  });

  it('that are newer than ours are fine: an old pod restarts during a deploy', async () => {
    const database = await fresh();
    await applied(database, { ...A, ...B, ...C });
    const folder = await folderOf({ ...A, ...B });
    expect(await migrate(database, { folder })).toEqual([]);
    expect(await schemaState(database, { folder })).toEqual({ is: 'current' });
  });

  it('are the same with the line ends of Windows', async () => {
    const database = await fresh();
    await applied(database, A);
    const folder = await folderOf({ '0001_a.sql': A['0001_a.sql'].replaceAll('\n', '\r\n') });
    expect(await migrate(database, { folder })).toEqual([]);
  });

  it('ask for no right to create anything where nothing is missing', async () => {
    const url = await server.createDatabase();
    const owner = new Postgres({ url, size: 1 });
    const folder = await applied(owner, A);
    await owner.query(
      `create role reader login password 'reads'; grant select on all tables in schema public to reader`,
    );
    await owner.close();
    const reader = new Postgres({ url: url.replace(/\/\/.*@/, '//reader:reads@'), size: 1 });
    onTestFinished(() => reader.close());
    expect(await migrate(reader, { folder })).toEqual([]);
    const newer = await folderOf({ ...A, '0002_b.sql': 'create table b (id int)' });
    await expect(migrate(reader, { folder: newer })).rejects.toMatchObject({ code: '42501' });
  });

  it('run on one process when 8 start together, and all 8 come up', async () => {
    const round = await migrateTogether(server, 8, false);
    expect(round).toEqual({ starts: 8, killed: 0, up: 8, appliers: 1, failures: [], isWhole: true });
  });

  it('are done by the next one when the process that runs them is killed', async () => {
    const round = await migrateTogether(server, 8, true);
    expect(round).toEqual({ starts: 8, killed: 1, up: 7, appliers: 1, failures: [], isWhole: true });
  });
});

describe('the schema of admission', () => {
  const at = '2026-01-01';

  it('tells every change of a row, by the names of what changed', async () => {
    const database = await fresh();
    await migrate(database);
    const heard: unknown[] = [];
    await database.listen(
      'holdfast_admission',
      (payload) => heard.push(JSON.parse(payload)),
      () => {},
    );
    const longest = '"'.repeat(200);
    const key = Buffer.alloc(32);
    await database.query(`insert into tenants (id) values ('t')`);
    await database.query(`update tenants set status = 'archived' where id = 't'`);
    await database.query(`delete from tenants`);
    await database.query('insert into devices (tenant, user_id, id) values ($1, $1, $1)', [longest]);
    await database.query(`insert into api_keys (id, key_hash, scopes) values ('k', $1, '{publish}')`, [key]);
    await database.query(`insert into revocations (tenant, kind, id, not_before) values ('t', 'user', 'u', $1)`, [at]);
    await database.query(`insert into revocations (tenant, kind, id) values ('t', 'token', 'j')`);
    await eventually(() =>
      expect(heard).toEqual([
        ['tenant', 't'],
        ['tenant', 't'],
        ['tenant', 't'],
        ['device', longest, longest, longest],
        ['key', 'k'],
        ['user', 't', 'u'],
        ['token', 't', 'j'],
      ]),
    );
  });

  it.each([
    ['a status that there is not', `insert into tenants (id, status) values ('t', 'paused')`],
    ['a hash of another length', `insert into api_keys (id, key_hash, scopes) values ('k', 'abc', '{}')`],
    ['a revocation of something else', `insert into revocations (tenant, kind, id) values ('t', 'device', 'd')`],
  ])('refuses %s', async (_, statement) => {
    const database = await fresh();
    await migrate(database);
    await expect(database.query(statement)).rejects.toMatchObject({ code: '23514' });
  });
});
