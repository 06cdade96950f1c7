import { Client, type ClientConfig } from 'pg';
import { FatalError } from '../core/errors.js';
import { within } from '../core/sleep.js';

export interface ServerOptions {
  /**
   * `postgres://user:password@host:port/database`. With `?pgbouncer=true` no limit is set at the start of a connection,
   * because PgBouncer refuses those: give the role its `statement_timeout` then (`alter role … set statement_timeout = '800ms'`),
   * or a statement that we gave up on runs to its end.
   */
  readonly url: string;
  /** Where the URL comes from, for errors. Default `DATABASE_URL`. */
  readonly givenAs?: string | undefined;
  /** Shown in `pg_stat_activity`. Default `holdfast`. */
  readonly name?: string;
}

const CONNECT_MS = 700;
/** Less than the client's patience: so the server says why, and nothing runs on that nobody waits for. */
const STATEMENT_MS = 800;
const ANSWER_MS = 1000;
/** A relay that vanished within a transaction must not hold its locks until TCP notices, which takes hours. */
const IDLE_IN_TRANSACTION_MS = 5000;
const CLOSE_MS = 300;

/** What we set ourselves: in the URL it would go before our bounds. */
const OURS = [
  'pgbouncer',
  'statement_timeout',
  'query_timeout',
  'lock_timeout',
  'idle_in_transaction_session_timeout',
] as const;

/** For whoever answers clients: bounded everywhere. */
export function servingConfig(options: ServerOptions): ClientConfig {
  const isPooled = new URL(options.url).searchParams.get('pgbouncer') === 'true';
  return {
    ...patientConfig(options),
    connectionTimeoutMillis: CONNECT_MS,
    query_timeout: ANSWER_MS,
    ...(!isPooled && {
      statement_timeout: STATEMENT_MS,
      idle_in_transaction_session_timeout: IDLE_IN_TRANSACTION_MS,
    }),
  };
}

/** For statements that may take as long as they take. Only connecting is bounded, at 1 s. */
export function patientConfig({ url, name = 'holdfast' }: ServerOptions): ClientConfig {
  const address = new URL(url);
  for (const parameter of OURS) address.searchParams.delete(parameter);
  return {
    connectionString: address.href,
    application_name: name,
    connectionTimeoutMillis: ANSWER_MS,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
  };
}

/**
 * Host and port as they are dialled, a socket's folder included.
 *
 * @throws {FatalError} the URL names a certificate that can't be read, or a mode that there isn't
 */
export function placeOf(options: ServerOptions): string {
  try {
    const { host, port } = new Client(patientConfig(options));
    return `${host}:${port}`;
  } catch (error) {
    throw new FatalError(`${sourceOf(options)}: ${(error as Error).message}`, { cause: error });
  }
}

/** What an operator has to change when the URL is wrong. */
export function sourceOf({ givenAs = 'DATABASE_URL' }: ServerOptions): string {
  return givenAs;
}

/** Says goodbye, and doesn't wait for a server that doesn't hear it. */
export async function closeClient(client: Client): Promise<void> {
  await within(CLOSE_MS, client.end());
  destroyClient(client);
}

/** Cuts the connection; what was under way on it rejects. */
export function destroyClient(client: Client): void {
  client.connection.stream.destroy();
}
