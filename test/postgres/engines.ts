import { rm } from 'node:fs/promises';
import type { Database } from '../../src/postgres/database.js';
import { Postgres } from '../../src/postgres/pool.js';
import { openCopy } from '../harness/pglite.js';
import { type PostgresProcess, startPostgres } from '../harness/postgres.js';

/** An engine that the contract holds for. */
export interface Engine extends AsyncDisposable {
  readonly database: Database;
  /** The server, of the engine that has one. */
  readonly server: PostgresProcess | undefined;
  /** Another database on the same data, for what closes it. */
  another(): Promise<Database>;
}

/** The size of the pool, where there is one. */
export const SIZE = 3;

export const ENGINES: Readonly<Record<string, () => Promise<Engine>>> = {
  'a server': async () => {
    const server = await startPostgres();
    const open = (): Postgres => new Postgres({ url: server.url, size: SIZE });
    const database = open();
    return {
      database,
      server,
      another: async () => open(),
      [Symbol.asyncDispose]: async () => {
        await database.close();
        await server.stop();
      },
    };
  },
  'one in this process': async () => {
    const folders: string[] = [];
    const open = async (): Promise<Database> => {
      const { folder, database } = await openCopy();
      folders.push(folder);
      return database;
    };
    const database = await open();
    return {
      database,
      server: undefined,
      another: open,
      [Symbol.asyncDispose]: async () => {
        await database.close();
        for (const folder of folders) await rm(folder, { recursive: true, force: true });
      },
    };
  },
};
