import { Redis } from 'ioredis';
import { createLog, type Log, type LogOptions } from '../../src/backend-log/index.js';
import type { Logger } from '../../src/core/ports.js';
import { Keys } from '../../src/redis/keys.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';

export const KEYS = new Keys('hf:');

export interface LogLine {
  readonly level: string;
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

/** Keeps what it is told. */
function keepingLogger(lines: LogLine[]): Logger {
  const at = (level: string) => (fields: object) => {
    const { event, ...rest } = fields as { event?: string };
    lines.push({ level, event: String(event), fields: rest });
  };
  return { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
}

let topics = 0;

/** A Redis of its own, and logs on topics that nobody else uses. */
export class GroupRig implements AsyncDisposable {
  readonly admin: Redis;
  readonly lines: LogLine[] = [];
  readonly #logs: Log[] = [];

  private constructor(readonly redis: RedisProcess) {
    this.admin = new Redis(redis.url, { retryStrategy: () => 50, maxRetriesPerRequest: null });
    this.admin.on('error', () => {});
  }

  static async start(options: Parameters<typeof startRedis>[0] = { aof: 'off' }): Promise<GroupRig> {
    return new GroupRig(await startRedis(options));
  }

  topic(): string {
    return `topic-${++topics}`;
  }

  log(topic: string, options: LogOptions = {}): Log {
    const log = createLog(this.redis.url, { topic, logger: keepingLogger(this.lines), ...options });
    this.#logs.push(log);
    return log;
  }

  /** Entries pending to anybody, in the partition's stream. */
  async pending(topic: string, group: string, partition = 0): Promise<number> {
    const [count] = (await this.admin.xpending(KEYS.partition(topic, partition).stream, `app:${group}`)) as [number];
    return count;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#logs.map((log) => log.close()));
    this.admin.disconnect();
    await this.redis.stop();
  }
}
