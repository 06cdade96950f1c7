import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import type { Registry } from 'prom-client';
import { RelayError } from '../core/errors.js';
import { type Logger, type Meter, silentLogger, silentMeter } from '../core/ports.js';
import { encodeBinary } from '../gateway/encode-binary.js';
import { type GroupMetrics, groupMetrics, LogAccess, partitionOf } from '../log/index.js';
import { meterOn } from '../ops/index.js';
import { placeOf } from '../redis/client-place.js';
import { Keys } from '../redis/keys.js';
import { checkContent, checkEvent, composeEvent, EVENTS_TOPIC } from '../wire/event.js';
import { isName } from '../wire/names.js';
import { formatPosition } from '../wire/position.js';
import { Group, type GroupOptions } from './group.js';

export interface LogOptions {
  /** Default `events`: what relays publish. */
  readonly topic?: string;
  /** Of a topic that there isn't yet; of one that there is it must be the same. Default: what the topic has, 1 for a new one. 1 to 1,024. */
  readonly partitions?: number;
  /** Before every key; relays have `hf:`. Default `hf:`. */
  readonly prefix?: string;
  /** Publisher of what is appended, by which ids are told apart, and what members' names begin with. Default: the host's name. */
  readonly name?: string;
  /** Warnings and errors go there; pino has this shape. Default: nowhere. */
  readonly logger?: Logger;
  /** A registry of prom-client, to which `holdfast_group_*` and `holdfast_log_*` are added. */
  readonly registry?: Registry;
  /** Entries and bytes that a partition keeps, at most twice that; relays have the same. Default 100,000 and 64 MB. */
  readonly maxEntries?: number;
  readonly maxBytes?: number;
  /** Of one event, in bytes. Default 1,000,000. */
  readonly maxPayloadBytes?: number;
}

export interface NewEvent {
  /** 1 to 200 characters. */
  readonly event: string;
  /** Anything that JSON can say, and binary data. Default null. */
  readonly data?: unknown;
  /** Sockets that are subscribed to it get it too. Absent: it is for groups only. */
  readonly room?: string;
  /** Default `default`. All of a tenant's events are in one partition, in one order. */
  readonly tenant?: string;
  /** Of an event without a room: those with the same key are in one partition, in one order, in place of the tenant's. */
  readonly key?: string;
  /** The publisher's own: within two minutes the same one lands once. */
  readonly id?: string;
}

export interface Appended {
  readonly position: string;
  /** The id had been appended before; `position` is the first one's. */
  readonly duplicate?: true;
}

export interface Log extends AsyncDisposable {
  /**
   * Resolves when Redis has it.
   *
   * @throws {RelayError} `bad_request` naming the field, `payload_too_large`, `overloaded`, and within 2 s `unavailable`; with
   *   `mayHaveHappened` a retry with the same id lands once
   */
  append(event: NewEvent): Promise<Appended>;
  /**
   * A consumer group of this topic: its members share the entries.
   *
   * @param name 1 to 200 characters; Redis has it as `app:<name>`
   * @throws {TypeError} in one line
   */
  group(name: string, options?: GroupOptions): Group;
  /** Members that run are stopped, as by their own `stop`. Idempotent. */
  close(): Promise<void>;
}

const LIMITS = {
  partitions: [1, 1024],
  maxEntries: [1000, 100_000_000],
  maxBytes: [1024 * 1024, 2 ** 40],
  maxPayloadBytes: [1024, 16 * 1024 * 1024],
} as const;
const ID_WINDOW_MS = 120_000;
const START_MS = 2000;

/**
 * The log for back ends: append to a topic, and read it as consumer groups. It needs Redis alone, and no relay.
 *
 * @param redis a URL, or an ioredis or node-redis client: it says where Redis is, and its own connection is not used
 * @throws {TypeError} in one line: no client, a Cluster, an option with a wrong value
 */
export function createLog(redis: unknown, options: LogOptions = {}): Log {
  return new BackendLog(redis, options);
}

class BackendLog implements Log {
  readonly #access: LogAccess;
  readonly #topic: string;
  readonly #name: string;
  readonly #options: LogOptions;
  readonly #address: ConstructorParameters<typeof LogAccess>[0];
  readonly #keys: Keys;
  readonly #groups = new Set<Group>();
  readonly #meter: Meter;
  /** By group. */
  readonly #metrics = new Map<string, GroupMetrics>();
  #partitions: Promise<number> | undefined;
  #closing: Promise<void> | undefined;

  constructor(redis: unknown, options: LogOptions) {
    for (const [name, [min, max]] of Object.entries(LIMITS)) {
      const value = options[name as keyof typeof LIMITS];
      if (value !== undefined && (!Number.isInteger(value) || value < min || value > max))
        throw new TypeError(`createLog: ${name}: wants a whole number from ${min} to ${max} (got ${String(value)})`);
    }
    const { topic = EVENTS_TOPIC, prefix = 'hf:', name = hostname(), registry } = options;
    for (const [option, value] of Object.entries({ topic, name }))
      if (!isName(value)) throw new TypeError(`createLog: ${option}: wants 1 to 200 characters (got ${String(value)})`);
    if (typeof prefix !== 'string' || !/^[\w:.-]{0,64}$/.test(prefix))
      throw new TypeError('createLog: prefix: wants at most 64 of the characters A–Z a–z 0–9 _ : . -');
    const { address, keyPrefix } =
      typeof redis === 'string' ? { address: urlOf(redis), keyPrefix: '' } : placeOf(redis, 'createLog');
    this.#topic = topic;
    this.#name = name;
    this.#options = options;
    this.#address = address;
    this.#keys = new Keys(`${keyPrefix}${prefix}`);
    const { maxEntries = 100_000, maxBytes = 64 * 1024 * 1024 } = options;
    this.#meter = registry ? meterOn(registry) : silentMeter;
    const limits = { maxEntries, maxBytes, idWindowMs: ID_WINDOW_MS };
    this.#access = new LogAccess(address, this.#keys, limits, { name: `holdfast:${name}`, meter: this.#meter });
  }

  async append({ room, key, tenant = 'default', ...request }: NewEvent): Promise<Appended> {
    if (this.#closing) throw new RelayError('shutting_down');
    for (const [field, value] of Object.entries({ tenant, key }))
      if (value !== undefined && !isName(value))
        throw new RelayError('bad_request', `${field}: wants 1 to 200 characters without control characters`);
    if (room !== undefined && key !== undefined)
      throw new RelayError('bad_request', 'key: an event with a room has the place of its tenant');
    const checked = room === undefined ? checkContent(request) : checkEvent({ room, ...request });
    const { maxPayloadBytes = 1_000_000 } = this.#options;
    const origin = { tenant, publisher: this.#name, newId: randomUUID(), at: this.#access.clock.at() };
    const encode = checked.isBinary ? encodeBinary : undefined;
    const { body, attachments, idempotency } = composeEvent(checked, origin, maxPayloadBytes, encode);
    const partitions = await this.#agreed();
    const partition = partitionOf(key ?? tenant, partitions);
    const { position, isDuplicate } = await this.#access.append(this.#topic, partition, {
      body,
      attachments,
      idempotency,
    });
    const { epoch, ms, offset } = position;
    const text = formatPosition(epoch, partition, ms, offset);
    return isDuplicate ? { position: text, duplicate: true } : { position: text };
  }

  group(name: string, options: GroupOptions = {}): Group {
    if (!isName(name)) throw new TypeError(`group: wants a name of 1 to 200 characters (got ${String(name)})`);
    const { logger = silentLogger, partitions } = this.#options;
    const metrics = this.#metrics.get(name) ?? groupMetrics(this.#meter, name);
    this.#metrics.set(name, metrics);
    const shared = { url: this.#address, keys: this.#keys, topic: this.#topic, partitions, name: this.#name };
    const group = new Group(name, options, { ...shared, logger, metrics });
    this.#groups.add(group);
    return group;
  }

  close(): Promise<void> {
    this.#closing ??= (async () => {
      await Promise.all([...this.#groups].map((group) => group.close()));
      await this.#access[Symbol.asyncDispose]();
    })();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Asked once; a Redis that could not be asked is asked again. */
  #agreed(): Promise<number> {
    this.#partitions ??= this.#agree().catch((error: unknown) => {
      this.#partitions = undefined;
      throw error;
    });
    return this.#partitions;
  }

  async #agree(): Promise<number> {
    const wanted = this.#options.partitions;
    if (!(await this.#access.whenUp(START_MS)))
      throw new RelayError('unavailable', this.#access.lastError || undefined);
    const count = await this.#access.makeTopic(this.#topic, wanted ?? 1).catch((cause: unknown) => {
      throw new RelayError('unavailable', undefined, { cause });
    });
    if (wanted !== undefined && wanted !== count)
      throw new RelayError('bad_request', `partitions: topic ${this.#topic} has ${count}, not ${wanted}`);
    return count;
  }
}

function urlOf(url: string): string {
  try {
    if (/^(rediss?|unix):$/.test(new URL(url).protocol)) return url;
  } catch {
    // said below
  }
  throw new TypeError('createLog: wants an ioredis client or a URL such as redis://localhost:6379');
}
