import { Redis } from 'ioredis';
import { within } from '../core/sleep.js';

/** What listens at a URL: our Redis (it knows the password and works in our folder), or `none`, whatever else is there. */
export type Answer = 'ready' | 'loading' | 'none';

const STEP_MS = 1000;
/** Of everything together: ioredis waits without limit for the answers of its own handshake. */
const ALL_MS = 2000;

/** `dir` is the folder as Redis names it: absolute, without symbolic links. */
export async function askRedis(url: string, dir: string): Promise<Answer> {
  const answer = await oneShot(url, async (redis): Promise<Answer> => {
    const reply = await redis.config('GET', 'dir');
    if (!Array.isArray(reply) || reply[1] !== dir) return 'none';
    return /^loading:1/m.test(await redis.info('persistence')) ? 'loading' : 'ready';
  });
  return answer ?? 'none';
}

/** Asks a Redis to end. It writes its log first; the caller looks for the end itself. */
export async function shutDownRedis(url: string): Promise<void> {
  await oneShot(url, (redis) => redis.call('SHUTDOWN'));
}

async function oneShot<T>(url: string, use: (redis: Redis) => Promise<T>): Promise<T | undefined> {
  const redis = new Redis(url, {
    lazyConnect: true,
    retryStrategy: () => null,
    maxRetriesPerRequest: 0,
    enableReadyCheck: false,
    disableClientInfo: true,
    protocol: 2,
    connectTimeout: STEP_MS,
    // a stranger on the port may accept and say nothing for ever
    commandTimeout: STEP_MS,
  });
  // failures arrive as rejections too
  redis.on('error', () => {});
  try {
    return await within(
      ALL_MS,
      redis.connect().then(() => use(redis)),
    );
  } catch {
    return undefined;
  } finally {
    redis.disconnect();
  }
}
