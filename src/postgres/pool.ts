import { Pool, type PoolClient, type QueryResult } from 'pg';
import { type Logger, silentLogger } from '../core/ports.js';
import { within } from '../core/sleep.js';
import { placeOf, type ServerOptions, servingConfig } from './client.js';
import { type Database, type Listening, type Query, type Row, sqlState } from './database.js';
import { Listener } from './listener.js';
import { Pinger } from './pinger.js';
import { inTransaction } from './transaction.js';

export interface PostgresOptions extends ServerOptions {
  /** Connections that serve; one more listens, and one answers pings. */
  readonly size: number;
  readonly logger?: Logger;
}

const IDLE_MS = 30_000;
/** A server behind a name that moved is found again within this, in seconds. */
const LIFETIME_S = 1800;
/** Longer than any statement lives. */
const CLOSE_MS = 2000;

/**
 * A Postgres server. It connects when it is first asked, and again whenever it must: an outage ends by itself.
 *
 * No error of it holds the password.
 */
export class Postgres implements Database {
  readonly place: string;
  readonly size: number;
  readonly #options: ServerOptions;
  readonly #pool: Pool;
  readonly #pinger: Pinger;
  readonly #listeners = new Set<Listening>();
  #closing: Promise<void> | undefined;

  constructor({ url, givenAs, name, size, logger = silentLogger }: PostgresOptions) {
    this.#options = { url, givenAs, name };
    this.place = placeOf(this.#options);
    this.size = size;
    this.#pool = new Pool({
      ...servingConfig(this.#options),
      max: size,
      idleTimeoutMillis: IDLE_MS,
      maxLifetimeSeconds: LIFETIME_S,
    });
    // only the reason: the error drags its client along
    this.#pool.on('error', ({ message }) =>
      logger.debug({ reason: message }, 'an idle connection to Postgres was lost'),
    );
    this.#pinger = new Pinger(this.#options);
  }

  query(text: string, values?: readonly unknown[]): Promise<readonly Row[]> {
    return this.#use(({ query }) => query(text, values));
  }

  queryUntil(signal: AbortSignal, text: string, values?: readonly unknown[]): Promise<readonly Row[]> {
    return this.#use(({ query }) => query(text, values), signal);
  }

  transaction<T>(work: (query: Query) => Promise<T>): Promise<T> {
    return this.#use((connection) => inTransaction(connection, work));
  }

  async listen(channel: string, onNotice: (payload: string) => void, onLost: () => void): Promise<Listening> {
    if (this.#closing) throw closed();
    const listener = await Listener.open(this.#options, channel, onNotice, () => {
      this.#listeners.delete(listener);
      onLost();
    });
    this.#listeners.add(listener);
    if (this.#closing) await listener.close();
    return {
      prove: () => listener.prove(),
      close: async () => {
        this.#listeners.delete(listener);
        await listener.close();
      },
    };
  }

  async ping(): Promise<void> {
    if (this.#closing) throw closed();
    await this.#pinger.ask();
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const listeners = [...this.#listeners].map((listener) => listener.close());
    await Promise.all([...listeners, this.#pinger.close(), within(CLOSE_MS, this.#pool.end())]);
  }

  /**
   * A connection of the pool for the time of `work`. It goes back only if the server answered every statement on it.
   *
   * An abort ends the connection too, and with it the statement.
   */
  async #use<T>(work: (connection: Query) => Promise<T>, signal?: AbortSignal): Promise<T> {
    signal?.throwIfAborted();
    const client = await this.#connect(signal);
    let isBroken = false;
    let isReleased = false;
    const fail = (): void => {
      isBroken = true;
    };
    const release = (): void => {
      if (isReleased) return;
      isReleased = true;
      signal?.removeEventListener('abort', abandon);
      client.off('error', fail);
      client.release(isBroken);
    };
    const abandon = (): void => {
      isBroken = true;
      release();
    };
    // while a client is out the pool doesn't listen for its errors, and nobody would
    client.on('error', fail);
    signal?.addEventListener('abort', abandon);
    try {
      signal?.throwIfAborted();
      return await work({
        async query(text, values) {
          try {
            return rowsOf(await client.query(text, values as unknown[]));
          } catch (error) {
            isBroken ||= !isAnswer(error);
            throw error;
          }
        },
      });
    } catch (error) {
      throw signal?.aborted ? signal.reason : error;
    } finally {
      release();
    }
  }

  /** A connection that comes after the abort goes back: a mere race would leave it with nobody. */
  #connect(signal: AbortSignal | undefined): Promise<PoolClient> {
    const connecting = this.#pool.connect();
    if (!signal) return connecting;
    return new Promise((resolve, reject) => {
      const onAbort = (): void => reject(signal.reason);
      signal.addEventListener('abort', onAbort);
      connecting
        .then((client) => (signal.aborted ? client.release() : resolve(client)), reject)
        .finally(() => signal.removeEventListener('abort', onAbort));
    });
  }
}

/** The server refused one statement, and takes the next one. */
const isAnswer = (error: unknown): boolean =>
  sqlState(error) !== undefined && (error as { severity?: string }).severity === 'ERROR';

/** Of several statements, the last one's. */
function rowsOf(result: QueryResult<Row> | readonly QueryResult<Row>[]): readonly Row[] {
  return Array.isArray(result) ? (result.at(-1)?.rows ?? []) : (result as QueryResult<Row>).rows;
}

const closed = (): Error => new Error('the connections to Postgres are closed');
