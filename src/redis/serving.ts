import { Redis } from 'ioredis';
import { FatalError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import { replyCode } from './connect.js';

/** Redis answers and will serve in a while: worth waiting for, however long it takes. */
export const REFUSES_FOR_NOW: ReadonlySet<string> = new Set([
  'LOADING',
  'OOM',
  'READONLY',
  'MISCONF',
  'NOREPLICAS',
  'MASTERDOWN',
  'BUSY',
  'CLUSTERDOWN',
  'TRYAGAIN',
]);

export interface ServingOptions {
  readonly url: string;
  /** A key that may be written and expires at once. */
  readonly probeKey: string;
  /** Without any answer for this long it gives up, in ms. */
  readonly withinMs: number;
  /** Called once per change of what Redis refuses with. */
  readonly onRefused: (code: string) => void;
  readonly signal: AbortSignal;
}

/** What an operator should know about a Redis that serves. */
export interface RedisFacts {
  readonly version: string | undefined;
  readonly evictionPolicy: string | undefined;
  readonly streamNodeMaxBytes: number | undefined;
  readonly streamNodeMaxEntries: number | undefined;
}

/**
 * Resolves when Redis executes a write: not when a port accepts, nor when a client says that it is connected.
 *
 * @throws {FatalError} in one line: nothing answers, the password is wrong, or the user may not write
 */
export async function untilServing(options: ServingOptions): Promise<RedisFacts> {
  const { url, probeKey, withinMs, onRefused, signal } = options;
  let deadline = performance.now() + withinMs;
  let refusedWith = '';
  for (;;) {
    const redis = new Redis(url, {
      lazyConnect: true,
      // CONFIG GET answers as the pair that is read below
      protocol: 2,
      enableReadyCheck: false,
      enableOfflineQueue: false,
      retryStrategy: () => null,
      maxRetriesPerRequest: 0,
      connectTimeout: 1000,
      commandTimeout: 1000,
      connectionName: 'holdfast:gate',
    });
    let lastError: Error | undefined;
    redis.on('error', (error: Error) => {
      lastError = error;
    });
    try {
      await redis.connect();
      await redis.set(probeKey, '1', 'PX', 1000);
      return await factsOf(redis);
    } catch (error) {
      // of the two, the one that Redis itself said
      const said = (replyCode(error) === '' ? (lastError ?? error) : error) as Error;
      const code = replyCode(said);
      if (code !== '' && !REFUSES_FOR_NOW.has(code)) throw new FatalError(`Redis refuses this relay: ${said.message}`);
      if (code !== '') {
        if (code !== refusedWith) onRefused(code);
        refusedWith = code;
        deadline = performance.now() + withinMs;
      } else if (performance.now() > deadline) {
        throw new FatalError(`Redis at ${new URL(url).host} does not answer: ${said.message}`);
      }
    } finally {
      redis.disconnect();
    }
    if (signal.aborted) throw new FatalError('stopped while waiting for Redis');
    await sleep(200, signal);
  }
}

async function factsOf(redis: Redis): Promise<RedisFacts> {
  const info = await redis.info().catch(() => '');
  const field = (name: string): string | undefined => new RegExp(`^${name}:(.*?)\r?$`, 'm').exec(info)?.[1];
  // providers block CONFIG: then it isn't known
  const config = (name: string): Promise<number | undefined> =>
    redis.config('GET', name).then(
      (pair) => (Array.isArray(pair) && pair[1] !== undefined ? Number(pair[1]) : undefined),
      () => undefined,
    );
  return {
    version: field('redis_version'),
    evictionPolicy: field('maxmemory_policy'),
    streamNodeMaxBytes: await config('stream-node-max-bytes'),
    streamNodeMaxEntries: await config('stream-node-max-entries'),
  };
}
