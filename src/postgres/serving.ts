import { Client } from 'pg';
import { FatalError } from '../core/errors.js';
import { sleep, within } from '../core/sleep.js';
import { closeClient, destroyClient, patientConfig, placeOf, type ServerOptions, sourceOf } from './client.js';
import { type Database, type Query, sqlState } from './database.js';
import { migrate, schemaState } from './migrations.js';
import { Pinger } from './pinger.js';
import { REFUSES_FOR_NOW } from './refusals.js';
import { inTransaction } from './transaction.js';

export interface ServingOptions extends ServerOptions {
  /** Brings the schema up to date; without it an old schema is fatal. */
  readonly mayMigrate: boolean;
  /** Without any answer for this long it gives up, in ms. */
  readonly withinMs: number;
  /** Called once per change of what Postgres refuses with: a SQLSTATE, and its text. */
  readonly onRefused: (code: string, reason: string) => void;
  /** Another process migrates, and this one waits for it. */
  readonly onWaiting?: () => void;
  readonly signal: AbortSignal;
  /** Default: the package's own migrations. */
  readonly folder?: string;
}

/** Nothing answers, as opposed to what answers and refuses. */
export class UnreachableError extends FatalError {}

/** Of each of the short steps before the schema. */
const STEP_MS = 1000;
const AGAIN_MS = 200;
const PING_MS = 1000;

type Attempt =
  | { readonly is: 'serving'; readonly applied: readonly string[] }
  | { readonly is: 'refused'; readonly code: string; readonly reason: string }
  | { readonly is: 'silent'; readonly reason: string; readonly cause: unknown };

/**
 * Resolves when Postgres takes writes and has the schema that this version needs. How long a migration takes, or one of
 * another process that it waits for, is not bounded, as long as the server answers meanwhile.
 *
 * @returns the names of the migrations that it applied
 * @throws {FatalError} in one line, without secrets: the user or database is wrong, or the schema
 * @throws {UnreachableError} nothing answers
 */
export async function untilServing(options: ServingOptions): Promise<readonly string[]> {
  const { withinMs, onRefused, signal } = options;
  const place = placeOf(options);
  let deadline = performance.now() + withinMs;
  let refusedWith = '';
  while (!signal.aborted) {
    const attempt = await tryOnce(options, place);
    if (attempt.is === 'serving') return attempt.applied;
    if (attempt.is === 'refused') {
      if (attempt.code !== refusedWith) onRefused(attempt.code, attempt.reason);
      refusedWith = attempt.code;
      deadline = performance.now() + withinMs;
    } else if (performance.now() > deadline && !signal.aborted) {
      const message = `Postgres at ${place} cannot be reached: ${attempt.reason}`;
      throw new UnreachableError(message, { cause: attempt.cause });
    }
    await sleep(AGAIN_MS, signal);
  }
  throw new FatalError('stopped while waiting for Postgres');
}

async function tryOnce(options: ServingOptions, place: string): Promise<Attempt> {
  const pinger = new Pinger(options);
  const client = new Client(patientConfig(options));
  client.on('error', () => {});
  const connection = connectionOf(client);
  const stop = (): void => destroyClient(client);
  options.signal.addEventListener('abort', stop);
  try {
    // connects as those do that will serve
    await pinger.ask();
    // a socket that was cut before it connects would connect all the same
    if (options.signal.aborted) throw new Error('stopped');
    await client.connect();
    await quickly(assertWritable(connection));
    if (options.mayMigrate)
      return {
        is: 'serving',
        applied: await whileAnswering(pinger, client, options.withinMs, () => migrate(connection, options)),
      };
    const state = await quickly(schemaState(connection, options));
    if (state.is === 'current') return { is: 'serving', applied: [] };
    const missing = state.missing.join(', ');
    throw new FatalError(
      `Postgres at ${place} has an old schema, without ${missing}: run holdfast migrate, or set HOLDFAST_MIGRATE=on`,
    );
  } catch (error) {
    return classify(error, place, sourceOf(options));
  } finally {
    options.signal.removeEventListener('abort', stop);
    await Promise.all([pinger.close(), closeClient(client)]);
  }
}

function connectionOf(client: Client): Query & Pick<Database, 'transaction'> {
  const connection: Query = {
    async query(text, values) {
      const result = await client.query(text, values as unknown[]);
      // several statements have several results, and none of ours asks for their rows
      return Array.isArray(result) ? [] : result.rows;
    },
  };
  return { ...connection, transaction: (work) => inTransaction(connection, work) };
}

/** A standby answers every question, and refuses what the relay is for. */
async function assertWritable(connection: Query): Promise<void> {
  const [row] = await connection.query(`select current_setting('transaction_read_only') = 'on' as is_read_only`);
  if (row?.is_read_only) throw Object.assign(new Error('it is read-only'), { code: '25006' });
}

async function quickly<T>(step: Promise<T>): Promise<T> {
  const done = await within(
    STEP_MS,
    step.then((value) => ({ value })),
  );
  if (!done) throw new Error(`no answer within ${STEP_MS} ms`);
  return done.value;
}

/** A statement may take long, but not on a server that nobody can reach any more: then its connection is cut. */
async function whileAnswering<T>(pinger: Pinger, client: Client, withinMs: number, work: () => Promise<T>): Promise<T> {
  const over = new AbortController();
  let silent: unknown;
  const watch = async (): Promise<void> => {
    let answeredAt = performance.now();
    for (;;) {
      await sleep(PING_MS, over.signal);
      if (over.signal.aborted) return;
      try {
        await pinger.ask();
        answeredAt = performance.now();
      } catch (error) {
        if (sqlState(error) !== undefined) answeredAt = performance.now();
        else if (performance.now() - answeredAt > withinMs) {
          silent = error;
          return destroyClient(client);
        }
      }
    }
  };
  const watching = watch();
  try {
    return await work();
  } catch (error) {
    throw silent ?? error;
  } finally {
    over.abort();
    await watching;
  }
}

/** @throws {FatalError} what no waiting will change */
function classify(error: unknown, place: string, source: string): Attempt {
  if (error instanceof FatalError) throw error;
  const reason = reasonOf(error);
  const code = sqlState(error);
  if (/unsupported startup parameter/.test(reason))
    throw new FatalError(`PgBouncer at ${place}: add ?pgbouncer=true to ${source} (it says: ${reason})`, {
      cause: error,
    });
  if (code !== undefined && REFUSES_FOR_NOW.test(code)) return { is: 'refused', code, reason };
  // the client's own words when the server wants a password and the URL has none
  if (code !== undefined || reason.startsWith('SASL:'))
    throw new FatalError(`Postgres at ${place} refuses this relay: ${reason}`, { cause: error });
  return { is: 'silent', reason, cause: error };
}

/** A name with several addresses fails with an error per address, and no text of its own. */
function reasonOf(error: unknown): string {
  if (error instanceof AggregateError && error.errors.length > 0) return error.errors.map(reasonOf).join(', ');
  return error instanceof Error ? error.message : String(error);
}
