import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FatalError } from '../core/errors.js';
import { type Database, type Query, sqlState } from './database.js';
import { REFUSES_FOR_NOW } from './refusals.js';

export interface MigrateOptions {
  /** Default: the package's own. */
  readonly folder?: string;
  /** Another process migrates: ours waits for it. */
  readonly onWaiting?: () => void;
}

export type SchemaState = { readonly is: 'current' } | { readonly is: 'old'; readonly missing: readonly string[] };

interface Migration {
  /** `0001` */
  readonly number: string;
  readonly name: string;
  readonly sql: string;
  /** SHA-256, whatever the line ends are: a checkout on Windows applies the same files. */
  readonly sum: string;
}

/** As far from here in `src` as in `dist`. */
const FOLDER = fileURLToPath(new URL('../../migrations', import.meta.url));
const FILE = /^(\d{4})_[\w-]+\.sql$/;
/** Any number will do that nothing else in the database locks. */
const LOCK = '5214906182311746';
const TABLE = 'holdfast_migrations';

/** Between two statements of ours nothing waits: who is silent for so long is gone, and must not hold the lock. */
const PREPARE = `
  set local statement_timeout = 0;
  set local lock_timeout = 0;
  set local idle_in_transaction_session_timeout = '60s'`;

const CREATE = `
  create table if not exists ${TABLE} (
    name text primary key,
    sum text not null,
    at timestamptz not null default now()
  )`;

/**
 * Whether the schema is what this version needs. A newer one is: an old pod must be able to restart during a deploy.
 *
 * @throws {FatalError} a file was edited after it was applied, or added before one that was
 */
export async function schemaState(database: Query, { folder }: MigrateOptions = {}): Promise<SchemaState> {
  const migrations = await readMigrations(folder);
  const [found] = await database.query(`select to_regclass('${TABLE}') is not null as is_there`);
  const missing = found?.is_there ? await missingOf(database, migrations) : migrations;
  return missing.length === 0 ? { is: 'current' } : { is: 'old', missing: missing.map(({ name }) => name) };
}

/**
 * Brings the schema up to date, all of it or nothing, whoever else does the same at the same time. Where nothing is
 * missing it only reads: pods need no right to create tables then.
 *
 * The connection must bear statements that take long; limits of the role or the server are lifted for the time of it.
 *
 * @returns the names of what was applied
 * @throws {FatalError} as `schemaState`, or a file failed
 */
export async function migrate(
  database: Query & Pick<Database, 'transaction'>,
  options: MigrateOptions = {},
): Promise<readonly string[]> {
  if ((await schemaState(database, options)).is === 'current') return [];
  const migrations = await readMigrations(options.folder);
  return database.transaction(async (connection) => {
    await connection.query(PREPARE);
    await lock(connection, options.onWaiting);
    await connection.query(CREATE);
    const missing = await missingOf(connection, migrations);
    for (const { name, sql, sum } of missing) {
      await apply(connection, name, sql);
      await connection.query(`insert into ${TABLE} (name, sum) values ($1, $2)`, [name, sum]);
    }
    return missing.map(({ name }) => name);
  });
}

/** Of the transaction, so that it also holds through a PgBouncer, and ends with whoever held it. */
async function lock(connection: Query, onWaiting: (() => void) | undefined): Promise<void> {
  const [row] = await connection.query('select pg_try_advisory_xact_lock($1::int8) as is_ours', [LOCK]);
  if (row?.is_ours) return;
  onWaiting?.();
  await connection.query('select pg_advisory_xact_lock($1::int8)', [LOCK]);
}

async function apply(connection: Query, name: string, sql: string): Promise<void> {
  try {
    await connection.query(sql);
  } catch (error) {
    const code = sqlState(error);
    if (code === undefined || REFUSES_FOR_NOW.test(code)) throw error;
    throw new FatalError(`migration ${name} failed: ${(error as Error).message}`, { cause: error });
  }
}

async function missingOf(connection: Query, migrations: readonly Migration[]): Promise<readonly Migration[]> {
  const rows = await connection.query(`select name, sum from ${TABLE}`);
  const applied = new Map(rows.map((row) => [numberOf(row.name as string), row]));
  const last = [...applied.keys()].sort().at(-1) ?? '';
  return migrations.filter(({ number, name, sum }) => {
    const row = applied.get(number);
    if (!row && number > last) return true;
    if (!row)
      throw new FatalError(
        `migration ${name} comes before ${applied.get(last)?.name}, which is applied: give it a higher number`,
      );
    if (row.name !== name) throw new FatalError(`migration ${name} has the number of ${row.name}, which is applied`);
    if (row.sum !== sum)
      throw new FatalError(`migration ${name} was edited after it was applied: restore it, and add another`);
    return false;
  });
}

async function readMigrations(folder = FOLDER): Promise<readonly Migration[]> {
  const names = (await readdir(folder)).filter((name) => FILE.test(name)).sort();
  return Promise.all(
    names.map(async (name) => {
      const sql = await readFile(join(folder, name), 'utf8');
      const sum = createHash('sha256').update(sql.replaceAll('\r\n', '\n')).digest('hex');
      return { number: numberOf(name), name, sql, sum };
    }),
  );
}

const numberOf = (name: string): string => FILE.exec(name)?.[1] ?? name;
