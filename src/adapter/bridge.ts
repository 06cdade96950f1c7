import { MessageType } from 'socket.io-adapter';
import { RelayError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import type { AppendRequest, Entry, EventLog } from '../log/index.js';
import { Connection, type RedisAddress } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript } from '../redis/script.js';
import type { EntryHeader } from '../wire/envelope.js';
import type { AdapterMetrics } from './metrics.js';
import type { BridgeSettings } from './options.js';
import { CARRIED, decodeFields, fromLog, type StreamsMessage, streamOf, streamsOf, toLog } from './streams-format.js';
import { StreamsRequests } from './streams-requests.js';

const BEGIN = loadScript(import.meta.url, 'bridge-begin');
const IN = loadScript(import.meta.url, 'bridge-in');
const LEASE = loadScript(import.meta.url, 'bridge-lease');
const OUT = loadScript(import.meta.url, 'bridge-out');

const LEASE_MS = 3000;
const RENEW_MS = 500;
/** A server that can't read the log for that long leaves the carrying to others. */
const BEHIND_MS = 30_000;
/** Longer than any Redis is away. */
const PLACES_MS = 86_400_000;
/** A starting server begins anew if nobody has carried for that long, in ms: who comes back after a while doesn't carry the while. */
const OLD_MS = 100_000;
/** What was read longer ago may be in the log by another server's hand, and its id be forgotten. */
const FRESH_MS = 60_000;
const BLOCK_MS = 1000;
const READ_ENTRIES = 100;
/** Of an old stream in a partition: more than its place can be behind. */
const MAX_SEEN = 20 * READ_ENTRIES;
/** In one script: their arguments are held by Redis at once. */
const OUT_LIMITS = { entries: 200, bytes: 500_000 } as const;
/** Of an entry that comes alone no notice is missed for longer. */
const LOOK_MS = 500;
const PAUSE_MS = 100;

export interface BridgeOptions {
  readonly url: RedisAddress;
  /** Before the old stream's name, as the client has it. */
  readonly keyPrefix: string;
  readonly keys: Keys;
  readonly processId: string;
  readonly settings: BridgeSettings;
  readonly log: EventLog;
  /** An emitter's `serverSideEmit`, which goes by the old stream: for all new servers. */
  readonly onServerSideEmit: (namespace: string, args: readonly unknown[]) => void;
  readonly counts: AdapterMetrics;
  readonly logger: Logger;
}

/**
 * Carries between the log and the stream of `@socket.io/redis-streams-adapter` while servers of both kinds run. One server at a
 * time does it, by a lease, but nothing depends on there being one only: what comes in is appended under the old entry's id,
 * and what goes out is written in one step with the place behind it. So whoever takes over begins at the place that it finds.
 */
export class Bridge extends Service {
  readonly requests: StreamsRequests;
  readonly #commands: Connection;
  readonly #reads: Connection;
  readonly #streams: readonly string[];
  readonly #stopping = new AbortController();
  /** By partition and old stream: entries of the stream that this process has read in the log. */
  readonly #seen = new Map<string, SeenEntries>();
  /** By old stream: the last of them. */
  readonly #lastSeen = new Map<string, string>();
  /** By partition: wakes whoever waits for entries of the log. */
  readonly #wakers = new Map<number, () => void>();
  #leading: Promise<void> = Promise.resolve();
  /** Until then this process has the lease, monotonic ms. */
  #heldUntil = 0;
  #isRefused = false;

  constructor(private readonly options: BridgeOptions) {
    super();
    const { url, keyPrefix, keys, processId, settings, logger } = options;
    const named = (name: string) => ({ url, name: `holdfast:${processId}:${name}`, opensLater: true });
    this.#commands = new Connection({ ...named('bridge'), silenceMs: 2500 });
    this.#reads = new Connection({ ...named('bridge-reads'), silenceMs: BLOCK_MS + 1000 });
    this.#streams = streamsOf(settings).map((name) => keyPrefix + name);
    const { channelPrefix } = settings;
    this.requests = new StreamsRequests({ url, keys, processId, channelPrefix, commands: this.#commands, logger });
  }

  /** Resolves when what either side writes from now on will be carried. */
  protected async onStart(): Promise<void> {
    for (const connection of [this.#commands, this.#reads]) connection.open();
    await this.requests.start();
    while (!(await this.#begin(OLD_MS).catch((error: unknown) => this.#failed(error)))) {
      this.#throwIfStopping();
      await sleep(PAUSE_MS, this.#stopping.signal);
    }
    this.#succeeded();
    this.#leading = this.#leadForever();
  }

  protected async onStop(): Promise<void> {
    this.#stopping.abort();
    for (const wake of this.#wakers.values()) wake();
    this.#reads.close();
    await within(1000, this.#leading);
    await within(
      500,
      this.#hold(0).catch(() => false),
    );
    await this.requests.stop();
    this.#commands.close();
  }

  #throwIfStopping(): void {
    if (this.#stopping.signal.aborted) throw new Error('stopped while starting');
  }

  /** Call when entries of the log were dispatched. */
  wake(partition: number): void {
    this.#wakers.get(partition)?.();
  }

  /** An entry that came from an old stream was dispatched. */
  saw({ id, namespace }: EntryHeader): void {
    const { log } = this.options;
    const [own = '', stream = this.#streams[0] as string] = id.split(' ');
    this.#lastSeen.set(stream, own);
    const partition = log.partitionOf(namespace);
    const { epoch } = log.dispatched(partition);
    const key = `${partition} ${stream}`;
    let seen = this.#seen.get(key);
    // of what an epoch lost nothing is in the log any more
    if (seen?.epoch !== epoch) {
      seen = { epoch, ids: new Set() };
      this.#seen.set(key, seen);
    }
    seen.ids.add(own);
    if (seen.ids.size > MAX_SEEN) seen.ids.delete(seen.ids.values().next().value as string);
  }

  /** One by one: when a partition, or a batch, was refused, a later entry may be in the log and an earlier one not. */
  #hasSeen(partition: number, stream: string, id: string): boolean {
    const seen = this.#seen.get(`${partition} ${stream}`);
    return seen?.epoch === this.options.log.newest(partition).epoch && seen.ids.has(id);
  }

  /** What is in no log, straight to the old stream; at most once. */
  writeBeside(namespace: string, fields: readonly string[]): void {
    const { keyPrefix, settings } = this.options;
    const stream = keyPrefix + streamOf(namespace, settings);
    if (!this.#commands.isUp) return this.#count('out', 'failed');
    this.#commands.redis.xadd(stream, 'MAXLEN', '~', settings.maxLen, '*', ...fields).then(
      () => this.#count('out', 'carried'),
      () => this.#count('out', 'failed'),
    );
  }

  // --- who carries

  async #leadForever(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      const askedAt = performance.now();
      if (await this.#hold(LEASE_MS).catch(() => false)) {
        this.#heldUntil = askedAt + LEASE_MS;
        await this.#lead();
      }
      await sleep(RENEW_MS, signal);
    }
  }

  /** One term: until the lease is lost. */
  async #lead(): Promise<void> {
    const term = new AbortController();
    const stop = (): void => term.abort();
    this.#stopping.signal.addEventListener('abort', stop);
    const keeping = this.#keepLease(term);
    const hasBegun = await this.#carry(term.signal);
    term.abort();
    await keeping;
    this.#stopping.signal.removeEventListener('abort', stop);
    if (!hasBegun) await this.#hold(0).catch(() => false);
  }

  /** Ends the term when it can't be renewed. */
  async #keepLease(term: AbortController): Promise<void> {
    const { signal } = term;
    while (performance.now() < this.#heldUntil) {
      await sleep(RENEW_MS, signal);
      if (signal.aborted) break;
      const askedAt = performance.now();
      const isHeld = await this.#hold(LEASE_MS).catch(() => undefined);
      if (isHeld) this.#heldUntil = askedAt + LEASE_MS;
      else if (isHeld === false) break;
    }
    term.abort();
    for (const wake of this.#wakers.values()) wake();
  }

  /** Resolves at the end of the term. False: it ended before anything could be carried. */
  async #carry(signal: AbortSignal): Promise<boolean> {
    if (!(await this.#untilDispatched(signal))) return false;
    const places = await this.#begin('').catch(() => undefined);
    if (!places || signal.aborted) return false;
    const { logger, log } = this.options;
    logger.info({ event: 'bridge_leads' }, 'this server carries between old and new servers now');
    const carrying = [this.#carryIn(places.slice(0, this.#streams.length), signal)];
    for (let partition = 0; partition < log.partitionCount; partition++)
      carrying.push(this.#carryOut(partition, places[this.#streams.length + partition] as string, signal));
    await Promise.all(carrying);
    return true;
  }

  async #hold(leaseMs: number): Promise<boolean> {
    const { keys, processId } = this.options;
    const args = [processId, leaseMs, PLACES_MS];
    return (await this.#commands.run(LEASE, [keys.bridgeLease, keys.bridgePlaces], args)) === 1;
  }

  /** @param oldMs places from which nobody carried for so long don't count; '' = all do */
  async #begin(oldMs: number | ''): Promise<string[]> {
    const { keys, log } = this.options;
    const newest = Array.from({ length: log.partitionCount }, (_, partition) => textOf(log.newest(partition)));
    const seen = this.#streams.map((stream) => this.#lastSeen.get(stream) ?? '0-0');
    return (await this.#commands.run(
      BEGIN,
      [keys.bridgePlaces, ...this.#streams],
      [PLACES_MS, oldMs, newest.length, ...newest, ...seen],
    )) as string[];
  }

  /**
   * What another one, or this one in an earlier term, may have appended last is read: then ids need not be remembered.
   * False: not in time, and another one may be further.
   */
  async #untilDispatched(signal: AbortSignal): Promise<boolean> {
    const { log } = this.options;
    const startedAt = performance.now();
    for (let partition = 0; partition < log.partitionCount; partition++) {
      // what comes meanwhile isn't waited for: there may always be more
      let goal: { readonly epoch: string; readonly offset: number } | undefined;
      for (;;) {
        const from = log.dispatched(partition);
        const page = await log.page(partition, from, { entries: 1, bytes: 1 }).catch(() => undefined);
        const { epoch, offset } = log.dispatched(partition);
        if (page && page.epoch === epoch && epoch === from.epoch) {
          if (goal?.epoch !== epoch) goal = { epoch, offset: page.newest.offset };
          // somebody may have deleted the last ones
          if (offset >= goal.offset || (page.isLast && page.entries.length === 0)) break;
        }
        if (signal.aborted) return false;
        const waitedMs = performance.now() - startedAt;
        if (waitedMs > LEASE_MS) this.#failed(new Error('this server has not read the log up to where its term began'));
        if (waitedMs > BEHIND_MS) return false;
        await sleep(20, signal);
      }
    }
    return !signal.aborted;
  }

  #count(direction: 'in' | 'out', outcome: 'carried' | 'skipped' | 'failed', by = 1): void {
    if (by > 0) this.options.counts.bridged.inc({ direction, outcome }, by);
  }

  /** One line when it begins, none for each try. */
  #failed(error: unknown): void {
    if (!this.#isRefused && !this.#stopping.signal.aborted)
      this.options.logger.warn(
        { event: 'bridge_waits', err: error },
        'nothing is carried to or from old servers for now',
      );
    this.#isRefused = true;
  }

  #succeeded(): void {
    if (this.#isRefused) this.options.logger.info({ event: 'bridge_goes_on' }, 'events are carried again');
    this.#isRefused = false;
  }

  // --- from the old stream to the log

  async #carryIn(places: string[], signal: AbortSignal): Promise<void> {
    const ids = [...places];
    while (!signal.aborted) {
      if (!this.#reads.isUp) {
        await this.#reads.whenUp(200);
        continue;
      }
      try {
        const found = await this.#reads.redis.xread(
          'COUNT',
          READ_ENTRIES,
          'BLOCK',
          BLOCK_MS,
          'STREAMS',
          ...this.#streams,
          ...ids,
        );
        const readAt = performance.now();
        for (const [stream, entries] of found ?? []) {
          if (signal.aborted || performance.now() - readAt > FRESH_MS) break;
          await this.#takeIn(stream, entries);
          ids[this.#streams.indexOf(stream)] = entries.at(-1)?.[0] as string;
        }
        this.#succeeded();
      } catch (error) {
        if (signal.aborted) return;
        this.#failed(error);
        await sleep(PAUSE_MS, signal);
      }
    }
  }

  /** Rejects when it isn't known that all of them are in the log. */
  async #takeIn(stream: string, entries: [string, string[]][]): Promise<void> {
    const { log, keys, onServerSideEmit } = this.options;
    const appends: Promise<boolean>[] = [];
    const emits: StreamsMessage[] = [];
    let [carried, failed, skipped] = [0, 0, 0];
    for (const [id, fields] of entries) {
      const message = decodeFields(fields);
      if (message === 'own') continue;
      const request = message && requestOf(message, this.#streams.length > 1 ? `${id} ${stream}` : id);
      if (request && message) {
        const partition = log.partitionOf(message.nsp);
        if (this.#hasSeen(partition, stream, id)) carried++;
        else appends.push(this.#append(partition, stream, id, request));
      } else if (message?.type === MessageType.SERVER_SIDE_EMIT && message.data.requestId === undefined)
        emits.push(message);
      else skipped++;
    }
    for (const outcome of await Promise.allSettled(appends)) {
      if (outcome.status === 'rejected') throw outcome.reason;
      if (outcome.value) carried++;
      else failed++;
    }
    const [ms, seq] = (entries.at(-1) as [string, string[]])[0].split('-') as [string, string];
    await this.#commands.run(IN, [keys.bridgePlaces], [`in:${stream}`, ms, seq, PLACES_MS]);
    this.#count('in', 'carried', carried);
    this.#count('in', 'failed', failed);
    this.#count('in', 'skipped', skipped);
    for (const { nsp, data } of emits) if (Array.isArray(data.packet)) onServerSideEmit(nsp, data.packet);
  }

  /** False: it is too large, and no try would bring it in. */
  async #append(partition: number, stream: string, id: string, request: AppendRequest): Promise<boolean> {
    const { log } = this.options;
    try {
      await log.append(partition, { ...request, idempotency: { scope: `${CARRIED} ${stream}`, id } });
    } catch (error) {
      if (!(error instanceof RelayError)) throw error;
      if (error.code === 'payload_too_large') return false;
      if (error.code !== 'overloaded') throw error;
      // too many ids are remembered: what comes late is worse than what could come twice if this server died just now
      await log.append(partition, request);
    }
    return true;
  }

  // --- from the log to the old stream

  async #carryOut(partition: number, from: string, signal: AbortSignal): Promise<void> {
    let place = from;
    while (!signal.aborted) {
      await this.#untilNewer(partition, place, signal);
      if (signal.aborted) return;
      try {
        place = await this.#giveOut(partition, place);
        this.#succeeded();
      } catch (error) {
        this.#failed(error);
        await sleep(PAUSE_MS, signal);
      }
    }
  }

  async #giveOut(partition: number, place: string): Promise<string> {
    const { log, keys, keyPrefix, settings } = this.options;
    const after = log.resolve({ partition, ...placeOf(place) });
    if (after.kind === 'invalid') return place;
    const page = await log.page(partition, after, OUT_LIMITS);
    const { epoch } = log.newest(partition);
    // the reader is about to learn of the new epoch
    if (page.epoch !== epoch) {
      await sleep(20);
      return place;
    }
    const isWhole = page.isLast && page.newest.offset > page.last.offset;
    const next = textOf({ epoch, ...(isWhole ? page.newest : page.last) });
    if (next === place) {
      await sleep(20);
      return place;
    }
    const streams: string[] = [];
    const args: (string | number)[] = [];
    let copied = 0;
    for (const entry of page.entries) {
      const fields = this.#fieldsOf(entry);
      if (!fields) continue;
      const stream = keyPrefix + streamOf(entry.header.namespace, settings);
      if (!streams.includes(stream)) streams.push(stream);
      args.push(streams.indexOf(stream) + 2, fields.length, ...fields);
      copied++;
    }
    const head = [`out:${partition}`, place, next, PLACES_MS, settings.maxLen];
    const elsewhere = (await this.#commands.run(OUT, [keys.bridgePlaces, ...streams], [...head, ...args])) as string;
    if (elsewhere !== '') return elsewhere;
    this.#count('out', 'carried', copied);
    return next;
  }

  #fieldsOf(entry: Entry): string[] | undefined {
    try {
      return fromLog(entry);
    } catch {
      this.#count('out', 'failed');
      return undefined;
    }
  }

  /** Resolves when the log may have entries behind the place, or it is time to look. */
  #untilNewer(partition: number, place: string, signal: AbortSignal): Promise<void> {
    const { log } = this.options;
    const { epoch, offset } = log.newest(partition);
    const at = placeOf(place);
    if (signal.aborted || epoch !== at.epoch || offset > at.offset) return Promise.resolve();
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        this.#wakers.delete(partition);
        resolve();
      };
      const timer = setTimeout(done, LOOK_MS);
      this.#wakers.set(partition, done);
    });
  }
}

/** `undefined` for what the log can't hold. */
function requestOf(message: StreamsMessage, id: string): AppendRequest | undefined {
  try {
    return toLog(message, id);
  } catch {
    return undefined;
  }
}

interface SeenEntries {
  readonly epoch: string;
  readonly ids: Set<string>;
}

interface Place {
  readonly epoch: string;
  readonly ms: number;
  readonly offset: number;
}

function textOf({ epoch, ms, offset }: Place): string {
  return `${epoch} ${ms} ${offset}`;
}

function placeOf(text: string): Place {
  const [epoch = '', ms = '0', offset = '0'] = text.split(' ');
  return { epoch, ms: Number(ms), offset: Number(offset) };
}
