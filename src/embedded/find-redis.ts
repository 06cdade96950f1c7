import { execFile } from 'node:child_process';
import { access, constants } from 'node:fs/promises';
import { delimiter, join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { FatalError } from '../core/errors.js';
import { type Logger, silentLogger } from '../core/ports.js';
import { fetchFromApt } from './apt.js';

/** A program that speaks Redis 7, and the environment that it runs in. */
export interface RedisBinary {
  readonly file: string;
  /** Such as `7.0.15`. */
  readonly version: string;
  readonly env: Readonly<Record<string, string>>;
}

export interface FindRedisOptions {
  /** The relay's data folder: a fetched copy is kept below it. */
  readonly dir: string;
  readonly logger?: Logger;
  /** Folders to look into, in order. Default: PATH, then where package managers put programs. */
  readonly places?: readonly string[];
}

const NAMES = ['redis-server', 'valkey-server'];
const LEAST_MAJOR = 7;
const ANSWER_MS = 5000;

const execute = promisify(execFile);

/**
 * A Redis 7 or Valkey of this machine; without one a private copy from apt, which takes 5 to 12 s at the first start.
 *
 * @throws {FatalError} one line that says how to get one
 */
export async function findRedis(options: FindRedisOptions): Promise<RedisBinary> {
  const { dir, logger = silentLogger, places = usualPlaces() } = options;
  for (const name of NAMES)
    for (const place of places) {
      const found = await examine(join(place, name), {});
      if (found) return found;
    }
  return fetchRedis(join(resolve(dir), 'redis-apt'), logger);
}

/** PATH is a fact about the machine like these folders, no setting of ours: so it is read here, and not by config. */
const usualPlaces = (): string[] => [
  ...(process.env.PATH ?? '').split(delimiter).filter((place) => place !== ''),
  '/usr/bin',
  '/usr/local/bin',
  '/opt/homebrew/bin',
  '/opt/homebrew/opt/redis/bin',
  '/usr/local/opt/redis/bin',
  '/home/linuxbrew/.linuxbrew/bin',
  '/snap/bin',
];

async function fetchRedis(folder: string, logger: Logger): Promise<RedisBinary> {
  logger.info({ folder }, 'no redis-server here: using a private copy from apt');
  let tree: Awaited<ReturnType<typeof fetchFromApt>>;
  try {
    // Debian keeps the program itself in redis-tools
    tree = await fetchFromApt(['redis-server', 'redis-tools'], folder);
  } catch (error) {
    throw notFound(error instanceof Error ? error.message : String(error));
  }
  const found = await examine(join(tree.root, 'usr/bin/redis-server'), tree.env);
  if (!found) throw notFound(`the copy in ${folder} is older or does not run`);
  return found;
}

const notFound = (reason: string): FatalError =>
  new FatalError(
    `no redis-server ${LEAST_MAJOR}.0 or newer (${reason}): get one with "apt install redis-server" or ` +
      '"brew install redis", or run "docker run -d -p 6379:6379 redis:7" and set REDIS_URL=redis://127.0.0.1:6379',
  );

async function examine(file: string, env: RedisBinary['env']): Promise<RedisBinary | undefined> {
  try {
    await access(file, constants.X_OK);
    const { stdout } = await execute(file, ['--version'], { env: { ...env }, timeout: ANSWER_MS });
    const version = /\bv=(\d+\.\d+(?:\.\d+)?)/.exec(stdout)?.[1];
    return version !== undefined && Number.parseInt(version, 10) >= LEAST_MAJOR ? { file, version, env } : undefined;
  } catch {
    return undefined;
  }
}
