import { type Meter, silentMeter } from '../core/ports.js';
import { RedisClock } from '../redis/clock.js';
import { Connection, type RedisAddress } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { EVENTS_TOPIC } from '../wire/event.js';
import { formatPosition } from '../wire/position.js';
import { Appender, type AppendRequest, type AppendResult } from './appender.js';
import { parseHistory, survivingTail } from './epochs.js';
import { type GroupDescription, redisNow, surveyGroups } from './groups/survey.js';
import { logMetrics } from './metrics.js';
import { type Page, readPage } from './page.js';
import { partitionOf } from './partition-of.js';
import { Watermark } from './watermark.js';

const SILENCE_MS = 2500;

export interface PartitionDescription {
  readonly topic: string;
  readonly partition: number;
  readonly epoch: string;
  /** Oldest offset in the log. */
  readonly first: number;
  readonly logEnd: string;
  readonly entries: number;
  readonly bytes: number;
  readonly epochs: readonly { readonly epoch: string; readonly reason: string }[];
}

/** The log for tools: looks at it, reads it and appends to it, without a group of its own. */
export class LogAccess implements AsyncDisposable {
  readonly clock = new RedisClock();
  readonly connection: Connection;
  /** By the key of the partition's stream. */
  readonly #appenders = new Map<string, Appender>();

  constructor(
    url: RedisAddress,
    readonly keys: Keys,
    private readonly limits: { readonly maxEntries: number; readonly maxBytes: number; readonly idWindowMs: number },
    private readonly about: { readonly name: string; readonly meter?: Meter } = { name: 'holdfast:cli' },
  ) {
    this.connection = new Connection({ url, name: about.name, silenceMs: SILENCE_MS });
  }

  /** False: Redis did not answer within `ms`. */
  whenUp(ms: number): Promise<boolean> {
    return this.connection.whenUp(ms);
  }

  get lastError(): string {
    return this.connection.lastError;
  }

  /** Topics that have been used, by name. */
  async topics(): Promise<readonly string[]> {
    // one of before there was a list
    const names = new Set([...(await this.connection.redis.smembers(this.keys.topics)), EVENTS_TOPIC]);
    const counts = await Promise.all([...names].map((topic) => this.partitionCount(topic)));
    return [...names].filter((_, index) => (counts[index] as number) > 0).sort();
  }

  /** 0: no such topic. */
  async partitionCount(topic: string): Promise<number> {
    return Number((await this.connection.redis.get(this.keys.partitionCount(topic))) ?? 0);
  }

  /**
   * Makes a topic if there is none.
   *
   * @returns how many partitions it has
   */
  async makeTopic(topic: string, partitions: number): Promise<number> {
    const { redis } = this.connection;
    await redis.sadd(this.keys.topics, topic);
    const existing = await redis.set(this.keys.partitionCount(topic), partitions, 'NX', 'GET');
    return existing === null ? partitions : Number(existing);
  }

  async describe(topic: string): Promise<readonly PartitionDescription[]> {
    const count = await this.partitionCount(topic);
    return Promise.all(Array.from({ length: count }, (_, partition) => this.#describePartition(topic, partition)));
  }

  async #describePartition(topic: string, partition: number): Promise<PartitionDescription> {
    const keys = this.keys.partition(topic, partition);
    const { redis } = this.connection;
    const [fields, entries] = await Promise.all([
      redis.hmget(keys.meta, 'epoch', 'first', 'offset', 'ms', 'bytes', 'history'),
      redis.xlen(keys.stream),
    ]);
    const [epoch, first, offset, ms, bytes, history] = fields;
    return {
      topic,
      partition,
      epoch: epoch ?? '',
      first: Number(first ?? 1),
      logEnd: formatPosition(epoch ?? '', partition, Number(ms ?? 0), Number(offset ?? 0)),
      entries,
      bytes: Number(bytes ?? 0),
      epochs: parseHistory(history ?? '').map((record) => ({ epoch: record.epoch, reason: record.reason })),
    };
  }

  /** Every group of a topic, one row per partition. */
  async groups(topic: string): Promise<readonly GroupDescription[]> {
    return surveyGroups(this.connection.redis, this.keys, await this.describe(topic));
  }

  page(
    topic: string,
    partition: number,
    after: { ms: number; offset: number },
    limits: { entries: number; bytes: number },
  ): Promise<Page> {
    return readPage(this.connection, this.keys.partition(topic, partition), partition, after, limits);
  }

  /** The newest entry of what there was up to `epoch` that is still there; offset 0: none is. `undefined`: all of it is. */
  async survivor(topic: string, partition: number, epoch: string): Promise<Page['newest'] | undefined> {
    const history = await this.connection.redis.hget(this.keys.partition(topic, partition).meta, 'history');
    return survivingTail(parseHistory(history ?? ''), epoch);
  }

  async partitionOf(topic: string, tenant: string): Promise<number> {
    return partitionOf(tenant, await this.partitionCount(topic));
  }

  /** Redis's time, asked now. */
  now(): Promise<number> {
    return redisNow(this.connection.redis);
  }

  /** @throws {RelayError} as {@link Appender.append} */
  append(topic: string, partition: number, request: AppendRequest): Promise<AppendResult> {
    const keys = this.keys.partition(topic, partition);
    let appender = this.#appenders.get(keys.stream);
    if (!appender) {
      appender = new Appender({
        ...this.limits,
        partition,
        keys,
        connection: this.connection,
        clock: this.clock,
        watermark: new Watermark(),
        metrics: logMetrics(this.about.meter ?? silentMeter),
        mayAppend: () => true,
      });
      this.#appenders.set(keys.stream, appender);
    }
    return appender.append(request);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const appender of this.#appenders.values()) appender.close();
    this.connection.close();
  }
}
