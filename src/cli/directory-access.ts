import { type Command, Option } from 'commander';
import { type Directory, type Page, type PageOptions, StoredDirectory } from '../admission/index.js';
import { loadToolConfig } from '../config.js';
import { FatalError, RelayError } from '../core/errors.js';
import { findEmbedded } from '../embedded/index.js';
import { sqlState } from '../postgres/database.js';
import { type Format, parseFormat } from './output.js';
import { RemoteDirectory } from './remote-directory.js';

const PAGE = 1000;
const NO_SUCH_TABLE = '42P01';

export interface AccessOptions {
  readonly output: Format;
  readonly databaseUrl?: string;
  readonly url?: string;
  readonly apiKey?: string;
}

/** Adds what every command about tenants, devices and keys takes. */
export function withAccess(command: Command): Command {
  return command
    .option('-o, --output <format>', 'text or json', parseFormat, 'text')
    .option('--database-url <url>', 'the Postgres of admission (DATABASE_URL)')
    .addOption(new Option('--url <url>', 'ask this relay, with HOLDFAST_API_KEY').env('HOLDFAST_URL'))
    .addOption(new Option('--api-key <key>').env('HOLDFAST_API_KEY').hideHelp());
}

/** Adds `--yes`, without which nothing is done that can't be undone. */
export function withConfirmation(command: Command): Command {
  return command.option('--yes', 'do it: there is no way back');
}

/** @throws {FatalError} unless `--yes` was given */
export function confirm(isConfirmed: boolean | undefined, what: string): void {
  if (!isConfirmed) throw new FatalError(`this would ${what}, for good; with --yes it is done`);
}

/**
 * Runs `work` on the directory in the database of `--database-url`, of the relay at `--url`, in the database at DATABASE_URL,
 * or of the relay that runs on the data folder.
 *
 * @throws {FatalError} there is none of them
 * @throws {RelayError} `unavailable` when it doesn't answer
 */
export async function withDirectory<T>(
  { databaseUrl: flag, url, apiKey }: AccessOptions,
  work: (directory: Directory) => Promise<T>,
): Promise<T> {
  if (flag === undefined && url !== undefined) return work(relayAt(url, apiKey));
  const { databaseUrl, dataDir } = flag === undefined ? loadToolConfig() : loadToolConfig({ DATABASE_URL: flag }, {});
  if (databaseUrl !== undefined)
    return inDatabase(databaseUrl, flag === undefined ? undefined : '--database-url', work);
  const embedded = await findEmbedded(dataDir);
  if (embedded?.port !== undefined)
    return work(new RemoteDirectory(`http://127.0.0.1:${embedded.port}`, embedded.apiKey));
  throw new FatalError(
    `no relay runs on ${dataDir}: start one with npm start, or say which Postgres with --database-url or DATABASE_URL, or which relay with --url`,
  );
}

function relayAt(url: string, apiKey: string | undefined): Directory {
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
    throw new FatalError(`--url: wants http://host:port or https://…, got ${JSON.stringify(url)}`);
  if (apiKey === undefined) throw new FatalError('--url: wants a key with the scope admin in HOLDFAST_API_KEY');
  return new RemoteDirectory(url.replace(/\/+$/, ''), apiKey);
}

async function inDatabase<T>(
  url: string,
  givenAs: string | undefined,
  work: (directory: Directory) => Promise<T>,
): Promise<T> {
  // the other commands need no Postgres, and would load its client too
  const { Postgres } = await import('../postgres/pool.js');
  const database = new Postgres({ url, givenAs, name: 'holdfast:cli', size: 1 });
  try {
    return await work(new StoredDirectory(database));
  } catch (error) {
    if (!(error instanceof RelayError) || error.cause === undefined) throw error;
    const { cause, code, mayHaveHappened } = error;
    if (sqlState(cause) === NO_SUCH_TABLE)
      throw new FatalError('the database has no tables of the relay yet: holdfast migrate', { cause });
    const why = cause instanceof Error ? cause.message : String(cause);
    const rest = mayHaveHappened ? '; what was asked may be done all the same' : '';
    throw new RelayError(code, `Postgres at ${database.place}: ${why}${rest}`, { cause });
  } finally {
    await database.close();
  }
}

/** Every row of a list that comes in pages. */
export async function allOf<Row>(list: (options: PageOptions) => Promise<Page<Row>>): Promise<Row[]> {
  const all: Row[] = [];
  for (let after: string | undefined, isLast = false; !isLast; isLast = after === undefined) {
    const { rows, next } = await list({ after, limit: PAGE });
    all.push(...rows);
    after = next;
  }
  return all;
}

/** With times as people read them. */
export function printable<Row extends object>(row: Row): Readonly<Record<string, unknown>> {
  return Object.fromEntries(
    Object.entries(row).map(([key, value]) => [
      key,
      key.endsWith('At') && typeof value === 'number' ? new Date(value).toISOString() : value,
    ]),
  );
}

/** A secret stands alone, for scripts: it is told only now. */
export function printSecret(secret: string, row: object, output: Format): void {
  process.stdout.write(output === 'json' ? `${JSON.stringify(printable(row))}\n` : `${secret}\n`);
}

/** @throws {FatalError} nothing is known of it */
export function known<Row>(row: Row | undefined, what: string): Row {
  if (row === undefined) throw new FatalError(`nothing is known of ${what}`);
  return row;
}

/** What was blocked before anything was known of it may be a slip of the pen. */
export function warnOfNew(isNew: boolean, what: string): void {
  if (isNew) process.stderr.write(`holdfast: nothing was known of ${what} before: is it spelt right?\n`);
}
