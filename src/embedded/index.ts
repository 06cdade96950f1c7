import { join, resolve } from 'node:path';
import { type Logger, silentLogger } from '../core/ports.js';
import { findRedis } from './find-redis.js';
import { lockFolder, readHolder } from './folder-lock.js';
import { EmbeddedRedis, findRunning, type RedisExit } from './redis-server.js';
import { forgetPort, readPort, writePort } from './relay-port.js';
import { type EmbeddedSecrets, embeddedSecrets, readSecrets } from './secrets.js';

export { readSecrets } from './secrets.js';

export interface StartEmbeddedOptions {
  /** The data folder; it is made if need be. */
  readonly dir: string;
  readonly logger?: Logger;
  readonly onExit?: (exit: RedisExit) => void;
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
  /** The relay serves: commands beside it find it there. */
  announce(port: number): Promise<void>;
  /** Ends Redis, then lets go of the folder. Idempotent. */
  stop(): Promise<void>;
}

const redisIn = (folder: string): string => join(folder, 'redis');

/**
 * Everything that a start without settings needs, in one folder that this process then holds alone. The same folder
 * gives the same data and secrets at the next start.
 *
 * @throws {FatalError} one line: the folder is in use or can't be written, or no Redis comes up
 */
export async function startEmbedded(options: StartEmbeddedOptions): Promise<Embedded> {
  const { logger = silentLogger, onExit } = options;
  const folder = resolve(options.dir);
  const lock = await lockFolder(folder);
  try {
    await forgetPort(folder);
    const secrets = await embeddedSecrets(folder);
    const binary = await findRedis({ dir: folder, logger });
    const redis = new EmbeddedRedis({ dir: redisIn(folder), binary, logger, onExit });
    await redis.start();
    logger.info({ folder, version: binary.version }, 'an embedded Redis serves this relay');
    return {
      ...secrets,
      url: redis.url,
      announce: (port) => writePort(folder, port),
      stop: () => redis.stop().finally(() => lock.release()),
    };
  } catch (error) {
    lock.release();
    throw error;
  }
}

/** How to reach the relay that runs on `dir`; `undefined` when none does. */
export async function findEmbedded(dir: string): Promise<FoundEmbedded | undefined> {
  const folder = resolve(dir);
  if (!(await readHolder(folder))) return undefined;
  const [secrets, url, port] = await Promise.all([readSecrets(folder), findRunning(redisIn(folder)), readPort(folder)]);
  return secrets && url !== undefined ? { ...secrets, url, port } : undefined;
}
