import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { FatalError } from '../../core/errors.js';
import type { Logger } from '../../core/ports.js';
import { Service } from '../../core/service.js';
import { sleep, within } from '../../core/sleep.js';
import { RedisClock } from '../../redis/clock.js';
import { Connection, type RedisAddress, replyCode } from '../../redis/connect.js';
import type { GroupMemberKeys, Keys } from '../../redis/keys.js';
import { loadScript } from '../../redis/script.js';
import { quotaOf } from './assignment.js';
import type { GroupMetrics } from './metrics.js';
import { PartitionReader } from './partition-reader.js';
import type { BatchHandler, EntryHandler, GroupGap, GroupSettings, GroupStart } from './settings.js';
import type { Source } from './source.js';
import { Workbench } from './workbench.js';

const BEAT = loadScript(import.meta.url, 'beat');
const LEAVE = loadScript(import.meta.url, 'leave');
const LEASE = loadScript(import.meta.url, 'lease');

const SILENCE_MS = 2500;
const MAX_BEAT_MS = 1000;
const PATIENCE_MS = 3000;
/** Whoever was away together with all others, behind an outage of Redis, has come back by then. */
const RETURN_MS = 500;
const LEAVE_MS = 2000;

export interface GroupMemberOptions {
  readonly url: RedisAddress;
  readonly keys: Keys;
  readonly topic: string;
  /** Unset: what the topic has; a topic that there isn't yet gets 1. */
  readonly partitions: number | undefined;
  readonly group: string;
  /** Begins the member's id. */
  readonly name: string;
  readonly start: GroupStart;
  readonly settings: GroupSettings;
  readonly handler: EntryHandler | BatchHandler;
  readonly onGap: (gap: GroupGap) => void;
  readonly logger: Logger;
  /** Shared by the members of the group in this process. */
  readonly metrics: GroupMetrics;
}

interface Living {
  readonly id: string;
  readonly joinedAt: number;
  readonly isOrdered: boolean;
  readonly isPaused: boolean;
}

/**
 * One member of a back-end group. Entries go to handlers at least once; what a member that died held goes to the others when its
 * lease has ended, and what it does after that no longer counts.
 */
export class GroupMember extends Service {
  readonly id: string;
  readonly #commands: Connection;
  readonly #clock = new RedisClock();
  readonly #keys: GroupMemberKeys;
  readonly #workbench: Workbench;
  readonly #metrics: GroupMetrics;
  /** Nothing is read or begun any more. */
  readonly #leaving = new AbortController();
  /** Redis isn't asked any more either. */
  readonly #over = new AbortController();
  #readers: PartitionReader[] = [];
  /** Of an ordered group: what this member has to itself. */
  readonly #leases = new Map<PartitionReader, Lease>();
  /** Of these, and of what it had, what is on its way to others. */
  readonly #giving = new Set<PartitionReader>();
  #living: readonly Living[] = [];
  readonly #joinedAt = Date.now();
  #beatAt = Number.NEGATIVE_INFINITY;
  /** Others are not taken for dead before, monotonic ms. */
  #trustsAt = Number.POSITIVE_INFINITY;
  #takesUntil = 0;
  #reconcileAt = 0;
  #beating: Promise<void> = Promise.resolve();
  #isSayingFailures = false;
  #leaveGauges: () => void = () => {};

  constructor(private readonly options: GroupMemberOptions) {
    super();
    const { url, keys, topic, group, name, settings, handler, logger, metrics } = options;
    this.id = `${name}-${randomBytes(6).toString('base64url')}`;
    this.#keys = keys.groupMembers(topic, group);
    this.#commands = new Connection({
      url,
      name: `holdfast:${group}:commands`,
      silenceMs: SILENCE_MS,
      opensLater: true,
    });
    this.#metrics = metrics;
    this.#workbench = new Workbench({
      settings,
      handler,
      member: this.id,
      metrics: this.#metrics,
      logger,
      mayBegin: (source) => this.#mayBegin(source),
      onRoom: () => {
        for (const reader of this.#readers) reader.wake();
      },
      onTrimmed: ({ source, entry: { offset } }) =>
        this.#readers[source.partition]?.place.tellTrimmed(1, { from: offset, to: offset }),
    });
  }

  /** Nothing new is begun, and what was read and not begun goes to others. */
  pause(): void {
    this.#workbench.pause();
    // a partition that it has to itself is given as a whole, in order, at the next turn
    if (!this.#isOrdered) void this.#release();
  }

  resume(): void {
    this.#workbench.resume();
  }

  get isPaused(): boolean {
    return this.#workbench.isPaused;
  }

  /** Waits for Redis as long as it takes. */
  protected async onStart(): Promise<void> {
    const { logger, group } = this.options;
    const patience = setTimeout(() => {
      this.#isSayingFailures = true;
      logger.warn(
        { event: 'group_waits', group, reason: this.#commands.lastError },
        'the group is not read yet; tried until Redis lets it',
      );
    }, PATIENCE_MS);
    patience.unref();
    try {
      this.#commands.open();
      const count = await this.#untilAnswered(() => this.#agreeOnPartitions());
      this.#readers = Array.from({ length: count }, (_, partition) => this.#makeReader(partition));
      // not while an administrator is at work
      await this.#untilAnswered(() => this.#join());
      for (const reader of this.#readers) await this.#untilAnswered(() => reader.place.prepare());
    } catch (error) {
      this.#close();
      if (!this.#leaving.signal.aborted)
        logger.error({ event: 'group_failed', group, err: error }, 'the group is not read');
      throw error;
    } finally {
      clearTimeout(patience);
    }
    if (this.#isSayingFailures) logger.info({ event: 'group_reads', group }, 'the group is read');
    this.#leaveGauges = this.#metrics.join(() => ({
      partitions: this.#readers.map(({ place }) => place.progress),
      inHand: this.#workbench.count,
      reads: this.#isOrdered ? this.#leases.size : this.#readers.length,
    }));
    if (!this.#isOrdered) for (const reader of this.#readers) reader.share();
    this.#beating = this.#beatForever();
  }

  protected async onStop(): Promise<void> {
    const { settings } = this.options;
    this.#leaving.abort();
    await this.start().catch(() => {});
    const reading = this.#readers.map((reader) => reader.end());
    const released = this.#release();
    await within(settings.drainMs, this.#workbench.end());
    await within(LEAVE_MS, Promise.all([...reading, released]));
    // what came while handlers ended, and what never came
    await within(LEAVE_MS, this.#release());
    await within(LEAVE_MS, Promise.all(this.#readers.map((reader) => this.#giveBack(reader))));
    await within(LEAVE_MS, this.#beating);
    await within(LEAVE_MS, this.#leave());
    this.#close();
  }

  #close(): void {
    this.#leaveGauges();
    this.#over.abort();
    this.#workbench.close();
    for (const reader of this.#readers) reader.close();
    this.#commands.close();
  }

  get #isOrdered(): boolean {
    return this.options.settings.orderedBy !== undefined;
  }

  #makeReader(partition: number): PartitionReader {
    const { url, keys, topic, group, start, settings, logger } = this.options;
    return new PartitionReader({
      url,
      partition,
      keys: keys.partition(topic, partition),
      groupKeys: keys.group(topic, partition, group),
      group: `app:${group}`,
      member: this.id,
      commands: this.#commands,
      clock: this.#clock,
      workbench: this.#workbench,
      settings,
      start,
      metrics: this.#metrics,
      logger,
      onGap: (gap) => this.#tellGap(gap),
      signal: this.#over.signal,
    });
  }

  #tellGap(gap: GroupGap): void {
    try {
      this.options.onGap(gap);
    } catch (error) {
      this.options.logger.error({ event: 'group_gap_handler', err: error }, 'onGap threw');
    }
  }

  async #agreeOnPartitions(): Promise<number> {
    const { keys, topic, partitions } = this.options;
    const { redis } = this.#commands;
    await redis.sadd(keys.topics, topic);
    const existing = await redis.set(keys.partitionCount(topic), partitions ?? 1, 'NX', 'GET');
    const count = existing === null ? (partitions ?? 1) : Number(existing);
    if (partitions !== undefined && partitions !== count)
      throw new FatalError(`topic ${topic} has ${count} partitions, not ${partitions}`);
    return count;
  }

  /** Until Redis answers; what it refuses for good, and what is wrongly asked, is thrown. */
  async #untilAnswered<T>(ask: () => Promise<T>): Promise<T> {
    for (;;) {
      if (this.#leaving.signal.aborted) throw new Error('stopped while starting');
      try {
        if (await this.#commands.whenUp(500)) return await ask();
      } catch (error) {
        if (error instanceof Error && error.name !== 'ReplyError' && this.#commands.isUp && !isWireFault(error))
          throw error;
        if (replyCode(error) === 'NOPERM' || replyCode(error) === 'WRONGTYPE') throw error;
        await sleep(100, this.#leaving.signal);
      }
    }
  }

  async #join(): Promise<void> {
    while (!(await this.#beat())) {
      if (this.#leaving.signal.aborted) throw new Error('stopped while starting');
      await sleep(200, this.#leaving.signal);
    }
  }

  get #beatMs(): number {
    return Math.min(MAX_BEAT_MS, this.options.settings.leaseMs / 4);
  }

  async #beatForever(): Promise<void> {
    const { signal } = this.#leaving;
    while (!signal.aborted) {
      try {
        if (this.#commands.isUp) await this.#turn();
      } catch (error) {
        this.#metrics.failedCommand('beat');
        if (replyCode(error) !== '') this.options.logger.debug({ event: 'group_beat', err: error }, 'a beat failed');
      }
      await sleep(this.#beatMs * (0.8 + 0.2 * Math.random()), signal);
    }
  }

  /** All that a member does by the clock. */
  async #turn(): Promise<void> {
    const { settings } = this.options;
    const wasAway = performance.now() - this.#beatAt > settings.leaseMs;
    // what it read before may be another's by now
    if (wasAway) this.#doubtAll();
    if (!(await this.#beat())) return;
    if (wasAway && !this.#isOrdered) for (const reader of this.#readers) await reader.reconcile();
    this.#workbench.pump();
    if (this.#isOrdered) await this.#share();
    else await this.#takeOver();
    for (const reader of this.#readers) {
      await reader.place.look().catch((error: unknown) => {
        this.#metrics.failedCommand('progress');
        if (replyCode(error) === '') throw error;
      });
    }
  }

  /** @returns false: an administrator is at work, and this is no member meanwhile */
  async #beat(): Promise<boolean> {
    const { settings } = this.options;
    const at = performance.now();
    const details = JSON.stringify({
      joinedAt: this.#joinedAt,
      host: hostname(),
      pid: process.pid,
      mode: this.#isOrdered ? 'ordered' : 'shared',
      partitions: [...this.#leases.keys()].map(({ partition }) => partition),
      isPaused: this.isPaused,
    });
    const { members, details: all, lock } = this.#keys;
    const [status, now, ...rows] = (await this.#commands.run(
      BEAT,
      [members, all, lock],
      [this.id, settings.leaseMs, details],
    )) as [string, number, ...string[]];
    this.#clock.learn(now);
    if (status === 'locked') return false;
    if (at - this.#beatAt > settings.leaseMs) this.#trustsAt = at + 2 * this.#beatMs + RETURN_MS;
    this.#beatAt = at;
    const living = readLiving(rows);
    const isAtWork = (all: readonly Living[], id: string): boolean =>
      all.some((other) => other.id === id && !other.isPaused);
    if (this.#living.some(({ id }) => isAtWork(this.#living, id) && !isAtWork(living, id)))
      this.#takesUntil = at + 2 * settings.leaseMs;
    this.#living = living;
    return true;
  }

  #mayBegin(source: Source): boolean {
    const { settings } = this.options;
    const soon = performance.now() - settings.leaseMs * 0.9;
    if (this.#beatAt < soon) return false;
    if (!this.#isOrdered) return true;
    for (const [reader, lease] of this.#leases) if (reader.sources.has(source)) return lease.keptAt > soon;
    return false;
  }

  /** A process that was paused for longer than its lease: nothing that it read is believed, but for what handlers are at. */
  #doubtAll(): void {
    for (const [reader, lease] of [...this.#leases]) this.#lose(reader, lease);
    this.#workbench.letGo();
    for (const reader of this.#readers) reader.doubt();
  }

  async #takeOver(): Promise<void> {
    const { settings } = this.options;
    const now = performance.now();
    if (now < this.#trustsAt || this.#workbench.isPaused) return;
    const living = this.#living.map(({ id }) => id);
    // after a change of members often, else now and then
    if (now >= this.#takesUntil && now < this.#reconcileAt) return;
    let isAll = true;
    for (const reader of this.#readers) {
      isAll = (await reader.takeOver(living)) && isAll;
      if (now >= this.#reconcileAt) {
        await reader.reconcile();
        await reader.sweepConsumers(living, settings.leaseMs);
      }
    }
    if (!isAll) this.#takesUntil = Math.max(this.#takesUntil, now + 2 * this.#beatMs);
    if (now >= this.#reconcileAt) this.#reconcileAt = now + settings.leaseMs;
  }

  /** Keeps its partitions, gives what is more than its part, takes what is less. */
  async #share(): Promise<void> {
    const now = performance.now();
    for (const [reader, lease] of this.#leases) {
      if (!(await this.#lease(reader, 'keep', lease.token))) this.#lose(reader, lease);
      else lease.keptAt = now;
    }
    const ordered = this.#living
      .filter(({ isOrdered, isPaused }) => isOrdered && !isPaused)
      .sort((a, b) => a.joinedAt - b.joinedAt || (a.id < b.id ? -1 : 1));
    const rank = ordered.findIndex(({ id }) => id === this.id);
    const quota = rank < 0 || this.isPaused ? 0 : quotaOf(rank, ordered.length, this.#readers.length);
    const kept = [...this.#leases].filter(([reader]) => !this.#giving.has(reader));
    for (const [reader, lease] of kept.slice(quota)) void this.#give(reader, lease);
    const how = now >= this.#trustsAt ? 'seize' : 'take';
    for (let index = 0; index < this.#readers.length && this.#leases.size < quota; index++) {
      // not all at the same partition first
      const reader = this.#readers[(index + rank) % this.#readers.length] as PartitionReader;
      // what is being given back would take along what is read anew meanwhile
      if (this.#leases.has(reader) || this.#giving.has(reader)) continue;
      const token = await this.#lease(reader, how, 0);
      if (token === undefined) continue;
      const lease: Lease = { token, keptAt: now };
      this.#leases.set(reader, lease);
      reader.own(token, () => this.#lose(reader, lease));
    }
  }

  async #lease(
    reader: PartitionReader,
    how: 'take' | 'seize' | 'keep' | 'give',
    token: number,
  ): Promise<number | undefined> {
    const { keys, topic, group, settings } = this.options;
    const { state } = keys.group(topic, reader.partition, group);
    const args = [this.id, settings.leaseMs, how, token];
    const [now, holder] = (await this.#commands.run(LEASE, [state], args)) as [number, string];
    return holder === this.id ? now : undefined;
  }

  /** Another has it: what this member read there is the other's. */
  #lose(reader: PartitionReader, lease: Lease): void {
    if (this.#leases.get(reader) !== lease) return;
    this.#leases.delete(reader);
    this.#workbench.letGo(reader.sources);
    void reader.end();
  }

  /** When what is at work there is done, another may have it. */
  async #give(reader: PartitionReader, lease: Lease): Promise<void> {
    this.#giving.add(reader);
    const { settings, logger } = this.options;
    await reader.end();
    await this.#release(reader.sources);
    await within(settings.drainMs, this.#workbench.whenIdle(reader.sources));
    await this.#giveBack(reader);
    try {
      await this.#lease(reader, 'give', lease.token);
    } catch (error) {
      logger.debug({ event: 'group_lease', err: error }, 'a lease ends by itself');
    }
    if (this.#leases.get(reader) === lease) this.#leases.delete(reader);
    this.#giving.delete(reader);
  }

  async #giveBack(reader: PartitionReader): Promise<void> {
    try {
      for (const source of reader.sources) await source.whenSettled();
      await reader.giveBackUnknown();
    } catch (error) {
      this.options.logger.debug({ event: 'group_release', err: error }, 'it goes to others when the lease ends');
    }
  }

  async #release(sources?: ReadonlySet<Source>): Promise<void> {
    try {
      for (const [source, holdings] of this.#workbench.letGo(sources)) await source.release(holdings);
    } catch (error) {
      // they go to others when the lease ends
      this.options.logger.debug({ event: 'group_release', err: error }, 'what was not begun could not be given back');
    }
  }

  async #leave(): Promise<void> {
    const { members, details } = this.#keys;
    try {
      for (const [reader, lease] of this.#leases) await this.#lease(reader, 'give', lease.token);
      await this.#commands.run(LEAVE, [members, details], [this.id]);
      const others = this.#living.map(({ id }) => id).filter((id) => id !== this.id);
      for (const reader of this.#readers) await reader.sweepConsumers(others, 0);
    } catch (error) {
      this.options.logger.debug(
        { event: 'group_leave', err: error },
        'the group forgets this member when its lease ends',
      );
    }
  }
}

/** What a member says of itself, as far as others need it. */
interface Details {
  readonly joinedAt?: number;
  readonly mode?: string;
  readonly isPaused?: boolean;
}

interface Lease {
  readonly token: number;
  /** Monotonic ms. */
  keptAt: number;
}

function readLiving(rows: readonly string[]): readonly Living[] {
  const living: Living[] = [];
  for (let index = 0; index < rows.length; index += 2) {
    const { joinedAt = 0, mode, isPaused = false } = JSON.parse(rows[index + 1] as string) as Details;
    living.push({ id: rows[index] as string, joinedAt, isOrdered: mode === 'ordered', isPaused });
  }
  return living;
}

function isWireFault(error: Error): boolean {
  return /isn't writeable|Connection is closed|ECONN|EPIPE|socket|timed? ?out|ended/i.test(error.message);
}
