import { once } from 'node:events';
import { rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import type { PGlite } from '@electric-sql/pglite';
import { FatalError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import { within } from '../core/sleep.js';
import type { Database, Listening, Query, Row } from '../postgres/database.js';
import { inTransaction } from '../postgres/transaction.js';
import { errnoOf, isThere } from './private-file.js';
import { Turns } from './turns.js';

const PACKAGE = '@electric-sql/pglite';
/** As long as a statement of a server may take, the wait for a connection included. */
const TURN_MS = 1700;
/** A statement that hangs must not hold up the end. */
const CLOSE_MS = 2000;

/**
 * Making a database takes some seconds of computing and 500 MB that are never given back: in a thread both end with it.
 * A thread, because it dies with the process, so nobody writes on in the folder of the next start.
 */
const MAKE = `
  const { workerData } = require('node:worker_threads');
  const { PGlite } = require(workerData.module);
  PGlite.create({ dataDir: workerData.dir }).then((database) => database.close());
`;

/**
 * A Postgres inside this process, with its files in `<folder>/postgres`; `undefined` when the package isn't installed.
 * The caller holds the lock of `folder`: a second process would ruin the files.
 *
 * @throws {FatalError} one line: it can't be made, or it is damaged
 */
export async function openPglite(folder: string, logger: Logger): Promise<EmbeddedPostgres | undefined> {
  const module = await import('@electric-sql/pglite').catch((error: unknown) => {
    if (errnoOf(error) === 'ERR_MODULE_NOT_FOUND') return undefined;
    throw error;
  });
  if (!module) {
    if (await isThere(join(folder, 'postgres')))
      throw new FatalError(`install ${PACKAGE}: ${folder} has a private Postgres, and without it nobody is refused`);
    logger.warn(
      { package: PACKAGE },
      `admission is off: install ${PACKAGE} for a private Postgres, or set DATABASE_URL`,
    );
    return undefined;
  }
  const dir = join(folder, 'postgres');
  try {
    if (!(await isThere(dir))) await make(folder, dir);
    return new EmbeddedPostgres(dir, await module.PGlite.create({ dataDir: dir }));
  } catch (error) {
    throw new FatalError(`the private Postgres in ${dir} does not start: ${messageOf(error)}`, { cause: error });
  }
}

/** Beside its place and then renamed, so that half of one is never taken for a whole one. */
async function make(folder: string, dir: string): Promise<void> {
  const draft = join(folder, 'pg.new');
  await rm(draft, { recursive: true, force: true });
  const module = createRequire(import.meta.url).resolve(PACKAGE);
  const [code] = await once(new Worker(MAKE, { eval: true, workerData: { module, dir: draft } }), 'exit');
  if (code !== 0) throw new Error(`it could not be made (${code})`);
  await rename(draft, dir);
}

/**
 * One session: statements and transactions take turns, and everything else of the process stands still while one runs.
 * So there is nothing to cut off: an abort reaches those that wait.
 */
export class EmbeddedPostgres implements Database {
  readonly place: string;
  readonly size = 1;
  readonly #database: PGlite;
  readonly #turns = new Turns(TURN_MS);
  #closing: Promise<void> | undefined;

  constructor(place: string, database: PGlite) {
    this.place = place;
    this.#database = database;
  }

  query(text: string, values?: readonly unknown[]): Promise<readonly Row[]> {
    return this.#turns.take(() => this.#run(text, values));
  }

  queryUntil(signal: AbortSignal, text: string, values?: readonly unknown[]): Promise<readonly Row[]> {
    return this.#turns.take(() => this.#run(text, values), signal);
  }

  transaction<T>(work: (query: Query) => Promise<T>): Promise<T> {
    return this.#turns.take(() => inTransaction({ query: (text, values) => this.#run(text, values) }, work));
  }

  /** A connection inside the process is never lost. */
  async listen(channel: string, onNotice: (payload: string) => void): Promise<Listening> {
    const forget = this.#database.onNotification((of, payload) => {
      if (of === channel && !this.#closing) onNotice(payload);
    });
    try {
      await this.query(`listen "${channel.replaceAll('"', '""')}"`);
    } catch (error) {
      forget();
      throw error;
    }
    return { prove: () => this.ping(), close: async () => forget() };
  }

  /** Past the turns: who asks how it is doesn't ask how long the queue is. */
  async ping(): Promise<void> {
    if (this.#closing) throw closed();
    await this.#database.query(`select 'in any transaction, also one that failed'`).catch((error: unknown) => {
      // 25P02: the transaction that has the turn failed, and the database answers
      if ((error as { code?: unknown }).code !== '25P02') throw error;
    });
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    await within(CLOSE_MS, this.#turns.close(closed()));
    await this.#database.close();
  }

  async #run(text: string, values: readonly unknown[] | undefined): Promise<readonly Row[]> {
    try {
      if (values) return (await this.#database.query<Row>(text, [...values])).rows;
      return ((await this.#database.exec(text)).at(-1)?.rows ?? []) as readonly Row[];
    } catch (error) {
      // they would be logged with it, and may be hashes of secrets
      if (error instanceof Error) Object.assign(error, { params: undefined, queryOptions: undefined });
      throw error;
    }
  }
}

const closed = (): Error => new Error('the private Postgres is closed');

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
