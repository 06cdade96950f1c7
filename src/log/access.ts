import { silentMeter } from '../core/ports.js';
import { RedisClock } from '../redis/clock.js';
import { Connection } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { EVENTS_TOPIC } from '../wire/event.js';
import { formatPosition } from '../wire/position.js';
import { Appender, type AppendRequest, type AppendResult } from './appender.js';
import { parseHistory, survivingTail } from './epochs.js';
import { logMetrics } from './metrics.js';
import { type Page, readPage } from './page.js';
import { partitionOf } from './partition-of.js';
import { parseSavedPosition } from './saved-position.js';
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

export interface GroupDescription {
  readonly group: string;
  readonly topic: string;
  readonly partition: number;
  /** Absent: it never committed. */
  readonly currentPosition: string | undefined;
  readonly logEndPosition: string;
  /** By subtraction of offsets; Redis's own is wrong after trims. Absent: not known. */
  readonly lag: number | undefined;
  /** Process id. */
  readonly consumer: string | undefined;
  /** When it last committed, ms since 1970. */
  readonly committedAt: number | undefined;
}

/** The log for tools: looks at it, reads it and appends to it, without a group of its own. */
export class LogAccess implements AsyncDisposable {
  readonly clock = new RedisClock();
  readonly #connection: Connection;
  /** By the key of the partition's stream. */
  readonly #appenders = new Map<string, Appender>();

  constructor(
    url: string,
    private readonly keys: Keys,
    private readonly limits: { readonly maxEntries: number; readonly maxBytes: number; readonly idWindowMs: number },
  ) {
    this.#connection = new Connection({ url, name: 'holdfast:cli', silenceMs: SILENCE_MS });
  }

  /** False: Redis did not answer within `ms`. */
  whenUp(ms: number): Promise<boolean> {
    return this.#connection.whenUp(ms);
  }

  get lastError(): string {
    return this.#connection.lastError;
  }

  /** Topics that have been used. */
  async topics(): Promise<readonly string[]> {
    return (await this.partitionCount(EVENTS_TOPIC)) > 0 ? [EVENTS_TOPIC] : [];
  }

  /** 0: no such topic. */
  async partitionCount(topic: string): Promise<number> {
    return Number((await this.#connection.redis.get(this.keys.partitionCount(topic))) ?? 0);
  }

  async describe(topic: string): Promise<readonly PartitionDescription[]> {
    const count = await this.partitionCount(topic);
    return Promise.all(Array.from({ length: count }, (_, partition) => this.#describePartition(topic, partition)));
  }

  async #describePartition(topic: string, partition: number): Promise<PartitionDescription> {
    const keys = this.keys.partition(topic, partition);
    const { redis } = this.#connection;
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
    const partitions = await this.describe(topic);
    const rows = await Promise.all(partitions.map((partition) => this.#groupsOf(partition)));
    return rows.flat().sort((a, b) => a.group.localeCompare(b.group) || a.partition - b.partition);
  }

  async #groupsOf({ topic, partition, logEnd, epoch }: PartitionDescription): Promise<GroupDescription[]> {
    const keys = this.keys.partition(topic, partition);
    const { redis } = this.#connection;
    const [saved, groups] = await Promise.all([
      redis.hgetall(keys.offsets),
      (redis.xinfo('GROUPS', keys.stream) as Promise<unknown[][]>).catch(() => []),
    ]);
    const end = Number(logEnd.slice(logEnd.lastIndexOf('-') + 1));
    const names = new Set([
      ...groups.map((fields) => String(fieldOf(fields, 'name'))),
      ...Object.keys(saved).map((pod) => `pod:${pod}`),
    ]);
    return [...names].map((group) => {
      const at = parseSavedPosition((group.startsWith('pod:') && saved[group.slice(4)]) || '');
      return {
        group,
        topic,
        partition,
        currentPosition: at && formatPosition(at.epoch, partition, at.ms, at.offset),
        logEndPosition: logEnd,
        lag: at?.epoch === epoch ? Math.max(0, end - at.offset) : undefined,
        consumer: at?.holder?.processId,
        committedAt: at?.holder?.committedAt,
      };
    });
  }

  page(
    topic: string,
    partition: number,
    after: { ms: number; offset: number },
    limits: { entries: number; bytes: number },
  ): Promise<Page> {
    return readPage(this.#connection, this.keys.partition(topic, partition), partition, after, limits);
  }

  /** The newest entry of what there was up to `epoch` that is still there; offset 0: none is. `undefined`: all of it is. */
  async survivor(topic: string, partition: number, epoch: string): Promise<Page['newest'] | undefined> {
    const history = await this.#connection.redis.hget(this.keys.partition(topic, partition).meta, 'history');
    return survivingTail(parseHistory(history ?? ''), epoch);
  }

  async partitionOf(topic: string, tenant: string): Promise<number> {
    return partitionOf(tenant, await this.partitionCount(topic));
  }

  /** Redis's time, asked now. */
  async now(): Promise<number> {
    const [seconds, micros] = await this.#connection.redis.time();
    return Number(seconds) * 1000 + Math.floor(Number(micros) / 1000);
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
        connection: this.#connection,
        clock: this.clock,
        watermark: new Watermark(),
        metrics: logMetrics(silentMeter),
        mayAppend: () => true,
      });
      this.#appenders.set(keys.stream, appender);
    }
    return appender.append(request);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const appender of this.#appenders.values()) appender.close();
    this.#connection.close();
  }
}

function fieldOf(fields: readonly unknown[], name: string): unknown {
  return fields[fields.indexOf(name) + 1];
}
