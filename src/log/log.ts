import { FatalError } from '../core/errors.js';
import type { Logger, Meter } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import { RedisClock } from '../redis/clock.js';
import { Connection, type RedisAddress, replyCode } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript } from '../redis/script.js';
import { REFUSES_FOR_NOW } from '../redis/serving.js';
import type { Position } from '../wire/position.js';
import { Appender, type AppendRequest, type AppendResult } from './appender.js';
import type { Entry } from './entry.js';
import { survivingTail } from './epochs.js';
import { type LogMetrics, logMetrics } from './metrics.js';
import { type Page, readPage, readRecent } from './page.js';
import { partitionOf } from './partition-of.js';
import { BLOCK_MS, Reader, type ReaderHandler } from './reader.js';
import { Refusals } from './refusals.js';
import { Watermark } from './watermark.js';

const TRIM = loadScript(import.meta.url, 'trim');
/** A command that isn't a blocking read and brings no byte for this long: the link is dead. */
const SILENCE_MS = 2500;

export interface EventLogOptions {
  readonly url: RedisAddress;
  readonly keys: Keys;
  readonly topic: string;
  /** Unset: what the topic has, 1 for a new one. */
  readonly partitions: number | undefined;
  readonly pod: string;
  readonly processId: string;
  readonly maxEntries: number;
  readonly maxBytes: number;
  readonly maxAgeMs: number;
  readonly trimMs: number;
  readonly reapMs: number;
  /** Nothing younger is trimmed below the hard caps, in ms. */
  readonly keepMs: number;
  readonly idWindowMs: number;
  /** An append has its answer by then, in ms. Default 1,950. */
  readonly budgetMs?: number;
  readonly handler: ReaderHandler;
  readonly logger: Logger;
  readonly meter: Meter;
}

/** Each has a connection of its own. */
const MAX_PARTITIONS = 1024;

/** What a position means in the log as it is now. */
export type Resolution =
  | { readonly kind: 'valid'; readonly ms: number; readonly offset: number }
  /** What stood behind `ms`–`offset` in the position's epoch is gone; reading goes on there. */
  | { readonly kind: 'epoch'; readonly ms: number; readonly offset: number }
  | { readonly kind: 'invalid' };

/** Refusals that pass, so that a start waits for their end. */
const PASSES = new Set([...REFUSES_FOR_NOW, 'MOVED', 'ASK']);

interface Partition {
  readonly appender: Appender;
  readonly reader: Reader;
  readonly reads: Connection;
  readonly trimRefusals: Refusals;
}

/**
 * The durable log: a topic of partitions on Redis Streams. Append resolves when Redis has the entry; each pod reads every
 * partition, in order, from where it stood when it last ran.
 */
export class EventLog extends Service {
  readonly clock = new RedisClock();
  readonly #metrics: LogMetrics;
  readonly #commands: Connection;
  readonly #pages: Connection;
  readonly #stopping = new AbortController();
  #partitions: Partition[] = [];
  #trimming: Promise<void> = Promise.resolve();

  constructor(private readonly options: EventLogOptions) {
    super();
    const { url, meter, pod } = options;
    this.#metrics = logMetrics(meter);
    const shared = { url, silenceMs: SILENCE_MS, opensLater: true };
    this.#commands = new Connection({ ...shared, name: `holdfast:${pod}:append` });
    this.#pages = new Connection({ ...shared, name: `holdfast:${pod}:pages` });
    this.#commands.on('down', () => this.clock.doubt());
    this.#gauges(meter);
  }

  get partitionCount(): number {
    return this.#partitions.length;
  }

  /** The longest that entries wait in any partition without coming through, in ms. */
  get stallMs(): number {
    return Math.max(0, ...this.#partitions.map(({ reader }) => reader.stallMs));
  }

  /** @throws {FatalError} when the topic has another number of partitions */
  protected async onStart(): Promise<void> {
    try {
      await this.#connect();
      const count = await this.#untilAnswered(() => this.#agreeOnPartitions(this.options.partitions));
      this.#throwIfStopping();
      this.#partitions = Array.from({ length: count }, (_, index) => this.#makePartition(index));
      await Promise.all(this.#partitions.map(({ reader }) => this.#untilAnswered(() => reader.start())));
    } catch (error) {
      if (!this.#stopping.signal.aborted) await this.#end();
      this.#partitions = [];
      throw error;
    }
  }

  async #connect(): Promise<void> {
    for (const connection of [this.#commands, this.#pages]) connection.open();
    for (const connection of [this.#commands, this.#pages]) {
      while (!(await connection.whenUp(500))) this.#throwIfStopping();
    }
  }

  /** A Redis that refuses or goes away while this starts is no reason to end: it is waited for. */
  async #untilAnswered<T>(ask: () => Promise<T>): Promise<T> {
    for (;;) {
      this.#throwIfStopping();
      try {
        return await ask();
      } catch (error) {
        const code = replyCode(error);
        if (error instanceof FatalError || !(code === '' || PASSES.has(code))) throw error;
        await sleep(100, this.#stopping.signal);
      }
    }
  }

  #throwIfStopping(): void {
    if (this.#stopping.signal.aborted) throw new Error('stopped while starting');
  }

  /** Entries come from now on. Between `start` and this, positions are known and nothing moves. */
  beginReading(): void {
    for (const { reader } of this.#partitions) reader.beginReading();
    this.#trimming = this.#trimForever();
  }

  protected async onStop(): Promise<void> {
    this.#stopping.abort();
    await this.#end();
  }

  async #end(): Promise<void> {
    const partitions = this.#partitions;
    await Promise.all(partitions.map(({ appender }) => appender.settle(1000)));
    await Promise.all(partitions.map(({ reader }) => reader.stop()));
    for (const { appender, reads } of partitions) {
      appender.close();
      reads.close();
    }
    await within(500, this.#trimming);
    this.#commands.close();
    this.#pages.close();
  }

  /** The partition of a tenant: all of a tenant's events are in one, in one order. */
  partitionOf(tenant: string): number {
    return partitionOf(tenant, this.#partitions.length);
  }

  /**
   * Resolves with the entry's position when Redis has accepted it.
   *
   * @throws {RelayError} `unavailable` (≤ 2 s; with `mayHaveHappened` the same id may be tried again), `overloaded`
   */
  append(partition: number, request: AppendRequest): Promise<AppendResult> {
    return this.#at(partition).appender.append(request);
  }

  /** Resolves when all that was appended up to now has its answer; `undefined`: it has. */
  whenAnswered(partition: number): Promise<void> | undefined {
    return this.#at(partition).appender.whenAnswered();
  }

  /** Where this pod stands: the newest entry that it dispatched. */
  dispatched(partition: number): Position {
    const { reader } = this.#at(partition);
    return { epoch: reader.epoch, partition, ...reader.at };
  }

  /** The newest entry that this pod knows of, dispatched or not. */
  newest(partition: number): Position {
    const { reader } = this.#at(partition);
    const newest = reader.newest.offset > reader.at.offset ? reader.newest : reader.at;
    return { epoch: reader.epoch, partition, ...newest };
  }

  /** What a client's position means here and now. */
  resolve(position: Position): Resolution {
    const partition = this.#partitions[position.partition];
    if (!partition) return { kind: 'invalid' };
    const { reader } = partition;
    const { ms, offset } = position;
    if (position.epoch === reader.epoch) return { kind: 'valid', ms, offset };
    const tail = survivingTail(reader.history, position.epoch);
    if (!tail || offset <= tail.offset) return { kind: 'valid', ms, offset };
    return { kind: 'epoch', ms: tail.ms, offset: tail.offset };
  }

  /** Entries behind `after`, with what the log holds at that moment. */
  page(
    partition: number,
    after: { ms: number; offset: number },
    limits: { entries: number; bytes: number },
  ): Promise<Page> {
    const keys = this.options.keys.partition(this.options.topic, partition);
    return readPage(this.#pages, keys, partition, after, limits);
  }

  /** The newest entries up to and with `upTo`, oldest first and without holes. */
  recent(
    partition: number,
    upTo: { ms: number; offset: number },
    limits: { entries: number; bytes: number },
  ): Promise<readonly Entry[]> {
    return readRecent(this.#pages, this.options.keys.partition(this.options.topic, partition), upTo, limits);
  }

  #at(partition: number): Partition {
    const found = this.#partitions[partition];
    if (!found) throw new RangeError(`no partition ${partition}`);
    return found;
  }

  #makePartition(index: number): Partition {
    const {
      url,
      keys: allKeys,
      topic,
      pod,
      processId,
      handler,
      logger,
      maxEntries,
      maxBytes,
      idWindowMs,
      budgetMs,
      reapMs,
    } = this.options;
    const keys = allKeys.partition(topic, index);
    const watermark = new Watermark();
    const shared = { partition: index, keys, clock: this.clock, watermark, metrics: this.#metrics };
    const commands = this.#commands;
    const reads = new Connection({ url, name: `holdfast:${pod}:read:${index}`, silenceMs: BLOCK_MS + 1000 });
    const appender: Appender = new Appender({
      ...shared,
      connection: commands,
      maxEntries,
      maxBytes,
      idWindowMs,
      budgetMs,
      mayAppend: () => reader.isVerified,
    });
    const reader: Reader = new Reader({
      ...shared,
      reads,
      commands,
      pod,
      processId,
      logger,
      handler: {
        onEntry: (entry, partition) => handler.onEntry(entry, partition),
        onBatchEnd: (partition) => handler.onBatchEnd?.(partition),
        onGap: (gap) => handler.onGap(gap),
        onFenced: () => handler.onFenced(),
        onEpoch: (turn) => {
          // FLUSHALL took the partition count along
          if (turn.reason === 'new') void this.#assertPartitions();
          handler.onEpoch(turn);
        },
      },
      onVerified: () => appender.resume(),
      reapMs,
    });
    return { appender, reader, reads, trimRefusals: new Refusals(logger, { op: 'trim', partition: index }) };
  }

  async #agreeOnPartitions(wanted: number | undefined): Promise<number> {
    const key = this.options.keys.partitionCount(this.options.topic);
    await this.#commands.redis.sadd(this.options.keys.topics, this.options.topic);
    const existing = await this.#commands.redis.set(key, wanted ?? 1, 'NX', 'GET');
    const count = existing === null ? (wanted ?? 1) : Number(existing);
    if (!Number.isInteger(count) || count < 1 || count > MAX_PARTITIONS)
      throw new FatalError(`${key} in Redis is ${JSON.stringify(existing)}, not a number of partitions`);
    if (wanted !== undefined && wanted !== count)
      throw new FatalError(
        `topic ${this.options.topic} has ${count} partitions, not ${wanted} (HOLDFAST_PARTITIONS; streamCount of an adapter)`,
      );
    return count;
  }

  async #assertPartitions(): Promise<void> {
    const key = this.options.keys.partitionCount(this.options.topic);
    await this.#commands.redis.set(key, this.#partitions.length, 'NX').catch(() => {});
  }

  async #trimForever(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      // pods take turns: whoever asks first within an interval does it
      await sleep(this.options.trimMs * (0.8 + 0.4 * Math.random()), signal);
      for (let index = 0; index < this.#partitions.length && !signal.aborted; index++) await this.#trim(index);
    }
  }

  async #trim(index: number): Promise<void> {
    const { keys: allKeys, topic, trimMs, maxEntries, maxBytes, maxAgeMs, keepMs, reapMs, logger } = this.options;
    const keys = allKeys.partition(topic, index);
    const { trimRefusals } = this.#at(index);
    try {
      const [status, , , , ...reaped] = (await this.#commands.run(
        TRIM,
        [keys.stream, keys.meta, keys.segments, keys.offsets, keys.producers],
        [trimMs * 0.7, maxEntries, maxBytes, maxAgeMs, keepMs, reapMs],
      )) as string[];
      trimRefusals.succeeded();
      if (status !== 'ok') return;
      for (const line of reaped) {
        const at = line.lastIndexOf('=');
        const unread = Number(line.slice(at + 1));
        this.#metrics.reapedGroups.inc();
        this.#metrics.trimmedUnread.inc(undefined, unread);
        logger.info(
          { event: 'group_reaped', partition: index, group: `pod:${line.slice(0, at)}`, unread },
          'a silent pod lost its group',
        );
      }
    } catch (error) {
      trimRefusals.failed(error);
      this.#metrics.redisErrors.inc({ op: 'trim' });
    }
  }

  #gauges(meter: Meter): void {
    const total = (read: (reader: Reader) => number): number | undefined =>
      this.#partitions.length === 0 ? undefined : this.#partitions.reduce((sum, { reader }) => sum + read(reader), 0);
    meter.gauge({ name: 'log_lag_entries', help: 'Entries in the log that this pod has not dispatched.' }, () =>
      total((reader) => reader.lag),
    );
    meter.gauge({ name: 'log_bytes', help: 'Bytes of the log, as of the last heartbeat.' }, () =>
      total((reader) => reader.bytes),
    );
    meter.gauge(
      { name: 'delivery_stall_seconds', help: 'For how long entries have been waiting without coming through.' },
      () => (this.#partitions.length === 0 ? undefined : this.stallMs / 1000),
    );
  }
}
