import { loadConfig, type RelayConfig } from '../config.js';
import { FatalError, RelayError } from '../core/errors.js';
import { findEmbedded } from '../embedded/index.js';
import { LogAccess } from '../log/index.js';
import { Keys } from '../redis/keys.js';

const CONNECT_MS = 3000;

export interface Access {
  readonly config: RelayConfig;
  readonly url: string;
  readonly jwtSecret: string | undefined;
}

/** The Redis that a command works on: `--redis-url`, `REDIS_URL`, or the one of the relay that runs on the data folder. */
export async function findAccess(redisUrl: string | undefined): Promise<Access> {
  // commands don't verify tokens, so they need no key for it
  const { REDIS_URL: fromEnv, ...env } = process.env;
  const url = redisUrl ?? fromEnv;
  const { config } = loadConfig(env);
  if (url) return { config: { ...config, redisUrl: checkUrl(url) }, url, jwtSecret: config.jwtSecret };
  const embedded = await findEmbedded(config.dataDir);
  if (!embedded)
    throw new FatalError(
      `no relay runs on ${config.dataDir}: start one with npm start, or say which Redis with --redis-url or REDIS_URL`,
    );
  return { config, url: embedded.url, jwtSecret: embedded.jwtSecret };
}

function checkUrl(url: string): string {
  return loadConfig({ REDIS_URL: url, HOLDFAST_JWT_SECRET: '-'.repeat(32) }).config.redisUrl as string;
}

/** Runs `work` on the log and closes it. */
export async function withLog<T>(
  redisUrl: string | undefined,
  work: (log: LogAccess, access: Access) => Promise<T>,
): Promise<T> {
  const access = await findAccess(redisUrl);
  const { config } = access;
  const limits = { maxEntries: config.logMaxEntries, maxBytes: config.logMaxBytes, idWindowMs: config.logIdWindowMs };
  await using log = new LogAccess(access.url, new Keys(config.keyPrefix), limits);
  if (!(await log.whenUp(CONNECT_MS)))
    throw new RelayError(
      'unavailable',
      `Redis at ${new URL(access.url).host} does not answer${log.lastError ? `: ${log.lastError}` : ''}`,
    );
  return await work(log, access);
}
