import { join, resolve } from 'node:path';
import { type Logger, silentLogger } from '../core/ports.js';
import type { Database } from '../postgres/database.js';
import { migrate } from '../postgres/migrations.js';
import { findRedis } from './find-redis.js';
import { lockFolder, readHolder } from './folder-lock.js';
import { openPglite } from './pglite.js';
import { EmbeddedRedis, findRunning, type RedisExit } from './redis-server.js';
import { forgetPort, readPort, writePort } from './relay-port.js';
import { type EmbeddedSecrets, embeddedSecrets, readSecrets } from './secrets.js';

export { readSecrets } from './secrets.js';

export interface StartEmbeddedOptions {
  /** The data folder; it is made if need be. */
  readonly dir: string;
  readonly logger?: Logger;
  readonly onExit?: (exit: RedisExit) => void;
  /** A private Postgres too. Default `false`. */
  readonly hasDatabase?: boolean;
}

/** What a relay without any settings runs on. */
export interface EmbeddedAccess extends EmbeddedSecrets {
  readonly url: string;
}

export interface FoundEmbedded extends EmbeddedAccess {
  /** Of its public listener; `undefined`: it doesn't serve yet. */
  readonly port: number | undefined;
}

export interface Embedded extends EmbeddedAccess {
  /** With its schema. `undefined`: it wasn't asked for, or its package isn't installed, which was said. */
  readonly database: Database | undefined;
  /** The relay serves: commands beside it find it there. */
  announce(port: number): Promise<void>;
  /** Ends Redis and Postgres, then lets go of the folder. Idempotent. */
  stop(): Promise<void>;
}

const redisIn = (folder: string): string => join(folder, 'redis');

/**
 * Everything that a start without settings needs, in one folder that this process then holds alone. The same folder
 * gives the same data and secrets at the next start.
 *
 * @throws {FatalError} one line: the folder is in use or can't be written, or no Redis or Postgres comes up
 */
export async function startEmbedded(options: StartEmbeddedOptions): Promise<Embedded> {
  const { hasDatabase = false } = options;
  const logger = options.logger ?? silentLogger;
  const folder = resolve(options.dir);
  const lock = await lockFolder(folder);
  try {
    await forgetPort(folder);
    const secrets = await embeddedSecrets(folder);
    const [redis, database] = await both(
      startRedis(folder, logger, options.onExit),
      hasDatabase ? startPostgres(folder, logger) : undefined,
    );
    return {
      ...secrets,
      url: redis.url,
      database,
      announce: (port) => writePort(folder, port),
      stop: async () => {
        // the folder is let go of with nobody in it, whichever of them fails
        const ends = await Promise.allSettled([redis.stop(), database?.close()]);
        lock.release();
        for (const end of ends) if (end.status === 'rejected') throw end.reason;
      },
    };
  } catch (error) {
    lock.release();
    throw error;
  }
}

async function startRedis(folder: string, logger: Logger, onExit?: (exit: RedisExit) => void): Promise<EmbeddedRedis> {
  const binary = await findRedis({ dir: folder, logger });
  const redis = new EmbeddedRedis({ dir: redisIn(folder), binary, logger, onExit });
  await redis.start();
  logger.info({ folder, version: binary.version }, 'an embedded Redis serves this relay');
  return redis;
}

async function startPostgres(folder: string, logger: Logger): Promise<Database | undefined> {
  const database = await openPglite(folder, logger);
  if (!database) return undefined;
  try {
    await migrate(database);
  } catch (error) {
    await database.close();
    throw error;
  }
  logger.info({ folder }, 'an embedded Postgres serves this relay');
  return database;
}

/** At the same time. If one fails the other one is stopped: the folder is let go of with nobody in it. */
async function both(
  redisStart: Promise<EmbeddedRedis>,
  databaseStart: Promise<Database | undefined> | undefined,
): Promise<[EmbeddedRedis, Database | undefined]> {
  const [redis, database] = await Promise.allSettled([redisStart, databaseStart]);
  if (redis.status === 'fulfilled' && database.status === 'fulfilled') return [redis.value, database.value];
  if (redis.status === 'fulfilled') await redis.value.stop();
  if (database.status === 'fulfilled') await database.value?.close();
  throw redis.status === 'rejected' ? redis.reason : (database as PromiseRejectedResult).reason;
}

/** How to reach the relay that runs on `dir`; `undefined` when none does. */
export async function findEmbedded(dir: string): Promise<FoundEmbedded | undefined> {
  const folder = resolve(dir);
  if (!(await readHolder(folder))) return undefined;
  const [secrets, url, port] = await Promise.all([readSecrets(folder), findRunning(redisIn(folder)), readPort(folder)]);
  return secrets && url !== undefined ? { ...secrets, url, port } : undefined;
}
