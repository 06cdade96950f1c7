import { loadToolConfig, type RelayConfig } from '../config.js';
import { FatalError, RelayError } from '../core/errors.js';
import { findEmbedded } from '../embedded/index.js';
import { LogAccess } from '../log/index.js';
import { replyCode } from '../redis/connect.js';
import { Keys } from '../redis/keys.js';

const CONNECT_MS = 3000;

/**
 * Runs `work` on the log and closes it. The log is at `--redis-url`, `REDIS_URL`, or in the Redis of the relay that runs on
 * the data folder.
 *
 * @throws {FatalError} there is no such Redis, or it refuses
 * @throws {RelayError} `unavailable` when it doesn't answer
 */
export async function withLog<T>(
  redisUrl: string | undefined,
  work: (log: LogAccess, config: RelayConfig) => Promise<T>,
): Promise<T> {
  const { url, config } = await redisOf(redisUrl);
  const limits = { maxEntries: config.logMaxEntries, maxBytes: config.logMaxBytes, idWindowMs: config.logIdWindowMs };
  await using log = new LogAccess(url, new Keys(config.keyPrefix), limits);
  const away = (reason: string): RelayError =>
    new RelayError('unavailable', `Redis at ${new URL(url).host} cannot be reached: ${log.lastError || reason}`);
  if (!(await log.whenUp(CONNECT_MS))) throw away(`no answer within ${CONNECT_MS / 1000} s`);
  try {
    return await work(log, config);
  } catch (error) {
    if (replyCode(error) !== '') throw new FatalError(`Redis refuses: ${(error as Error).message}`, { cause: error });
    // ioredis has no class for it: a connection that is down now went down under the command
    if (!(error instanceof FatalError || error instanceof RelayError) && !(await log.whenUp(1)))
      throw away((error as Error).message);
    throw error;
  }
}

/** Where Redis is: `--redis-url`, `REDIS_URL`, or that of the relay on the data folder. */
export async function redisOf(redisUrl: string | undefined): Promise<{ url: string; config: RelayConfig }> {
  const config = loadToolConfig({ REDIS_URL: redisUrl });
  return { url: config.redisUrl ?? (await embeddedUrl(config.dataDir)), config };
}

async function embeddedUrl(dataDir: string): Promise<string> {
  const embedded = await findEmbedded(dataDir);
  if (embedded) return embedded.url;
  throw new FatalError(
    `no relay runs on ${dataDir}: start one with npm start, or say which Redis with --redis-url or REDIS_URL`,
  );
}

/** @throws {FatalError} when no relay has made the topic yet */
export async function existingTopic(log: LogAccess, topic: string): Promise<void> {
  if ((await log.partitionCount(topic)) === 0)
    throw new FatalError(`no topic ${JSON.stringify(topic)} in this Redis: holdfast topics list`);
}
