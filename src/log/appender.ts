import { createHash, randomBytes } from 'node:crypto';
import { RelayError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import type { RedisClock } from '../redis/clock.js';
import { type Connection, replyCode } from '../redis/connect.js';
import type { PartitionKeys } from '../redis/keys.js';
import { loadScript } from '../redis/script.js';
import type { Position } from '../wire/position.js';
import type { LogMetrics } from './metrics.js';
import type { Watermark } from './watermark.js';

const APPEND = loadScript(import.meta.url, 'append');

/** From the call to its answer, in ms: a publisher hears within 2 s. */
const BUDGET_MS = 1950;
/** Of the budget, what is kept for the answer's way back: Redis writes nothing later than the budget less this. */
const RETURN_MS = 300;
const MAX_BATCH_ITEMS = 500;
const MAX_BATCH_BYTES = 1_000_000;
/** Arguments of one script call, each of which Redis parses and Lua holds: many empty attachments have hardly any bytes. */
const MAX_BATCH_VALUES = 20_000;
const MAX_WAITING_BYTES = 64 * 1024 * 1024;
/** What an append takes while it waits, beside its bytes. */
const ITEM_BYTES = 500;
/** Of one entry: Lua can't pass on more than some thousand values at once, and would notice in the middle of a batch. */
const MAX_ATTACHMENTS = 1000;
const MAX_IDS_PER_BUCKET = 200_000;

export interface AppendRequest {
  /** Header and payload, as `wire/envelope.ts` makes them. */
  readonly body: string;
  readonly attachments?: readonly Buffer[];
  /** Who publishes and its own id for this event: within the window the same pair is appended once. */
  readonly idempotency?: { readonly scope: string; readonly id: string };
}

export interface AppendResult {
  readonly position: Position;
  /** The id had been appended before; `position` is the first one's. */
  readonly isDuplicate: boolean;
}

interface Item {
  readonly request: AppendRequest;
  readonly id: Buffer | undefined;
  readonly bytes: number;
  /** When its caller must have an answer, monotonic ms. */
  readonly end: number;
  readonly resolve: (result: AppendResult) => void;
  readonly reject: (error: RelayError) => void;
  isDone: boolean;
  /** Told when it is done, whatever came of it. */
  onDone: (() => void) | undefined;
  done: Promise<void> | undefined;
}

interface Batch {
  items: Item[];
  readonly number: number;
  readonly epochCandidate: string;
  /** Redis ms; fixed once a copy may be on its way, so that 'late' proves that none was or will be written. */
  notAfter: number;
  isSent: boolean;
  isAbandoned: boolean;
}

export interface AppenderOptions {
  readonly partition: number;
  readonly keys: PartitionKeys;
  readonly connection: Connection;
  readonly clock: RedisClock;
  readonly watermark: Watermark;
  readonly metrics: LogMetrics;
  readonly maxEntries: number;
  readonly maxBytes: number;
  readonly idWindowMs: number;
  readonly budgetMs?: number;
  /** Nothing is sent while this is false; `resume` says that it no longer is. */
  readonly mayAppend: () => boolean;
}

/** Redis refused and will go on refusing: certainly not written. */
const REFUSED = new Set(['OOM', 'MISCONF', 'NOREPLICAS']);
/** An operator's error: loud, and not tried again. */
const MISCONFIGURED = new Set(['NOPERM', 'NOAUTH', 'WRONGPASS', 'WRONGTYPE']);
/** Redis can't now, and wrote nothing. */
const NOT_NOW = new Set(['READONLY', 'LOADING', 'MASTERDOWN', 'BUSY', 'CLUSTERDOWN', 'TRYAGAIN', 'MOVED', 'ASK']);

/**
 * Appends to one partition. All calls of one turn travel together, one batch is in flight, and what arrives meanwhile is the
 * next. A batch is named by (producer, number), so sending it again after a lost answer writes nothing twice; it carries a
 * `notAfter` in Redis's own time, so nothing is written after its caller was told `unavailable`.
 */
export class Appender {
  readonly #producer = randomBytes(9).toString('base64url');
  readonly #waiting: Item[] = [];
  #waitingBytes = 0;
  /** Of the name of a new epoch, should a batch find the log gone; with the batch's number nobody ever has it twice. */
  readonly #epochBase = randomBytes(6).toString('base64url');
  #newest: Item | undefined;
  #inFlight: Batch | undefined;
  #lastNumber = 0;
  #isScheduled = false;
  #isClosed = false;
  #timer: NodeJS.Timeout | undefined;
  readonly #onReady = (): void => this.#flush();

  constructor(private readonly options: AppenderOptions) {
    options.connection.on('ready', this.#onReady);
  }

  /**
   * Resolves when Redis has accepted the entry.
   *
   * @throws {RelayError} `unavailable` within 2 s when Redis can't answer; `mayHaveHappened` says that it may be in the log,
   *   and a retry with the same id lands once. `overloaded` when 64 MB wait, or too many ids are remembered.
   *   `payload_too_large` for more than 1,000 attachments.
   */
  append(request: AppendRequest): Promise<AppendResult> {
    const { body, attachments = [] } = request;
    const bytes = attachments.reduce((sum, part) => sum + part.length, Buffer.byteLength(body) + ITEM_BYTES);
    if (this.#isClosed) return Promise.reject(new RelayError('shutting_down'));
    if (attachments.length > MAX_ATTACHMENTS) return Promise.reject(new RelayError('payload_too_large'));
    if (this.#waitingBytes + bytes > MAX_WAITING_BYTES) return Promise.reject(new RelayError('overloaded'));
    return new Promise((resolve, reject) => {
      const end = performance.now() + (this.options.budgetMs ?? BUDGET_MS);
      const id = request.idempotency && hashId(request.idempotency);
      const item: Item = {
        request,
        id,
        bytes,
        end,
        resolve,
        reject,
        isDone: false,
        onDone: undefined,
        done: undefined,
      };
      this.#waiting.push(item);
      this.#newest = item;
      this.#waitingBytes += bytes;
      this.#watch();
      // while a batch is in flight this one waits for its end
      if (this.#isScheduled || this.#inFlight) return;
      this.#isScheduled = true;
      queueMicrotask(() => {
        this.#isScheduled = false;
        this.#flush();
      });
    });
  }

  /** Sends what waited until it may be sent. */
  resume(): void {
    this.#flush();
  }

  /** Resolves when all that was given up to now has its answer; `undefined`: it has. */
  whenAnswered(): Promise<void> | undefined {
    const item = this.#newest;
    if (!item || item.isDone) return undefined;
    item.done ??= new Promise((resolve) => {
      item.onDone = resolve;
    });
    return item.done;
  }

  /** Waits, at most `ms`, until everything that was given has its answer. */
  async settle(ms: number): Promise<void> {
    const end = performance.now() + ms;
    while ((this.#waiting.length > 0 || this.#inFlight) && performance.now() < end) await sleep(5);
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.options.connection.off('ready', this.#onReady);
    const batch = this.#inFlight;
    if (batch) {
      batch.isAbandoned = true;
      for (const item of batch.items) this.#fail(item, 'shutting down', batch.isSent);
    }
    for (const item of this.#takeWaiting(this.#waiting.length)) this.#fail(item, 'shutting down', false);
  }

  // --- deadlines

  /** One timer, at the earliest deadline: items wait in order of their ends. */
  #watch(): void {
    if (this.#timer || this.#isClosed) return;
    const next = this.#inFlight?.items.find((item) => !item.isDone) ?? this.#waiting[0];
    if (!next) return;
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined;
        this.#expire();
        this.#watch();
      },
      Math.max(1, next.end - performance.now()),
    );
  }

  #expire(): void {
    const now = performance.now();
    const batch = this.#inFlight;
    // before what waits: callers who do without the log do so in the order of their calls
    for (const item of batch?.items ?? []) if (item.end <= now) this.#fail(item, 'no answer', batch?.isSent === true);
    this.#refuseWaiting(now);
    if (!batch?.items.every((item) => item.isDone)) return;
    batch.isAbandoned = true;
    this.#inFlight = undefined;
    // what the socket still holds must not reach Redis
    if (batch.isSent) this.options.connection.reset();
    this.#flush();
  }

  #refuseWaiting(until: number): void {
    const index = this.#waiting.findIndex((item) => item.end > until);
    const why = this.options.connection.isUp ? 'no answer in time' : 'no connection';
    for (const item of this.#takeWaiting(index < 0 ? this.#waiting.length : index)) this.#fail(item, why, false);
  }

  /** In one piece: a long queue that loses its first item again and again is copied each time. */
  #takeWaiting(count: number): Item[] {
    const items = this.#waiting.splice(0, count);
    for (const { bytes } of items) this.#waitingBytes -= bytes;
    return items;
  }

  #fail(item: Item, why: string, mayHaveHappened: boolean): void {
    if (item.isDone) return;
    finish(item);
    this.options.metrics.refused.inc({ outcome: mayHaveHappened ? 'unknown' : 'unavailable' });
    item.reject(new RelayError('unavailable', `the log cannot be reached: ${why}`, { mayHaveHappened }));
  }

  // --- batches

  #flush(): void {
    if (this.#inFlight || this.#isClosed || !this.options.connection.isUp || !this.options.mayAppend()) return;
    // what couldn't be answered in time is not sent at all
    this.#refuseWaiting(performance.now() + RETURN_MS + 50);
    let count = 0;
    let [bytes, values] = [0, 0];
    for (; count < Math.min(this.#waiting.length, MAX_BATCH_ITEMS); count++) {
      const item = this.#waiting[count] as Item;
      bytes += item.bytes;
      values += 2 + (item.request.attachments?.length ?? 0);
      if (count > 0 && (bytes > MAX_BATCH_BYTES || values > MAX_BATCH_VALUES)) break;
    }
    if (count > 0) this.#send(this.#takeWaiting(count));
  }

  #send(items: Item[]): void {
    const batch: Batch = {
      items,
      number: ++this.#lastNumber,
      epochCandidate: `${this.#epochBase}${this.#lastNumber.toString(36)}`,
      notAfter: 0,
      isSent: false,
      isAbandoned: false,
    };
    this.#inFlight = batch;
    this.#watch();
    this.#run(batch).catch((error: unknown) => {
      this.#break(batch, error);
      this.#finish(batch);
    });
  }

  #reject(item: Item, error: RelayError): void {
    finish(item);
    item.reject(error);
  }

  /** Trying again is no use. */
  #break(batch: Batch, cause: unknown): void {
    const mayHaveHappened = batch.isSent;
    for (const item of batch.items) {
      if (item.isDone) continue;
      this.options.metrics.refused.inc({ outcome: mayHaveHappened ? 'unknown' : 'internal' });
      this.#reject(item, new RelayError('internal', undefined, { cause, mayHaveHappened }));
    }
  }

  #finish(batch: Batch): void {
    if (this.#inFlight !== batch) return;
    this.#inFlight = undefined;
    this.#flush();
  }

  async #run(batch: Batch): Promise<void> {
    const { connection, clock, metrics, mayAppend } = this.options;
    while (!batch.isAbandoned) {
      if (!connection.isUp || !mayAppend()) {
        await connection.whenUp(100);
        if (!mayAppend()) await sleep(2);
        continue;
      }
      if (!clock.isKnown) {
        if (!(await this.#askTime())) await sleep(20);
        continue;
      }
      if (!batch.isSent) {
        // `notAfter` alone would let Redis write what was refused, once its clock has stepped back
        batch.items = batch.items.filter((item) => !item.isDone);
        batch.notAfter = clock.at((batch.items[0] as Item).end - RETURN_MS);
      }
      const wasSent = batch.isSent;
      batch.isSent = true;
      let reply: unknown;
      try {
        reply = await connection.run(APPEND, this.#keys(), this.#arguments(batch));
      } catch (error) {
        if (batch.isAbandoned) return;
        metrics.redisErrors.inc({ op: 'append' });
        const code = replyCode(error);
        if (code === '') {
          // never left this process, or its outcome is unknown: the same (producer, number) again while the budget lasts
          if (!wasSent && isUnsent(error)) batch.isSent = false;
          await sleep(5);
          continue;
        }
        // another error may have come in the middle of a batch
        const isCertain = REFUSED.has(code) || MISCONFIGURED.has(code) || NOT_NOW.has(code);
        if (!wasSent && isCertain) batch.isSent = false;
        if (MISCONFIGURED.has(code)) {
          this.#break(batch, error);
          return this.#finish(batch);
        }
        if (REFUSED.has(code) && !wasSent) {
          for (const item of batch.items) this.#fail(item, `Redis refuses writes (${code})`, false);
          return this.#finish(batch);
        }
        await sleep(50);
        continue;
      }
      if (batch.isAbandoned) return;
      return this.#answer(batch, reply as [string, ...unknown[]]);
    }
  }

  async #askTime(): Promise<boolean> {
    try {
      const [seconds, micros] = await this.options.connection.redis.time();
      this.options.clock.learn(Number(seconds) * 1000 + Math.floor(Number(micros) / 1000));
      return true;
    } catch {
      return false;
    }
  }

  #keys(): string[] {
    const { keys } = this.options;
    return [keys.stream, keys.meta, keys.segments, keys.producers, ...keys.ids];
  }

  #arguments(batch: Batch): (string | number | Buffer)[] {
    const { maxEntries, maxBytes, idWindowMs, watermark } = this.options;
    const ids: (number | Buffer)[] = [];
    batch.items.forEach((item, index) => {
      if (item.id) ids.push(index, item.id);
    });
    const args: (string | number | Buffer)[] = [
      batch.notAfter,
      batch.epochCandidate,
      maxEntries,
      maxBytes,
      idWindowMs,
      MAX_IDS_PER_BUCKET,
      this.#producer,
      batch.number,
      watermark.epoch,
      watermark.ms,
      watermark.offset,
      ids.length / 2,
      ...ids,
    ];
    for (const { request } of batch.items) {
      const attachments = request.attachments ?? [];
      args.push(attachments.length, request.body, ...attachments);
    }
    return args;
  }

  #answer(batch: Batch, reply: [string, ...unknown[]]): void {
    const { clock } = this.options;
    switch (reply[0]) {
      case 'ok':
        this.#accept(batch, reply as unknown as AppendReply);
        break;
      case 'late': {
        // no copy of this batch was written, nor will be: whoever has time left goes into a new one
        clock.learn(reply[1] as number);
        const soon = performance.now() + RETURN_MS + 50;
        const rest = batch.items.filter((item) => !item.isDone && item.end > soon);
        for (const item of batch.items) if (!rest.includes(item)) this.#fail(item, 'no answer in time', false);
        if (rest.length > 0) return this.#send(rest);
        break;
      }
      case 'full': {
        const rest = batch.items.filter((item) => !item.isDone && !item.id);
        for (const item of batch.items) if (item.id && !item.isDone) this.#reject(item, new RelayError('overloaded'));
        if (rest.length > 0) return this.#send(rest);
        break;
      }
      default:
        for (const item of batch.items) this.#fail(item, 'its outcome is not known', true);
    }
    this.#finish(batch);
  }

  #accept(batch: Batch, [, epoch, ms, base, , wall, dups]: AppendReply): void {
    const { clock, watermark, metrics, partition } = this.options;
    clock.learn(wall);
    const duplicates = new Map<number, { ms: number; offset: number }>();
    for (const part of dups === '' ? [] : dups.split(',')) {
      const [index, id] = part.split('=') as [string, string];
      const [dupMs, dupOffset] = id.split('-').map(Number) as [number, number];
      duplicates.set(Number(index), { ms: dupMs, offset: dupOffset });
    }
    let offset = base;
    batch.items.forEach((item, index) => {
      const duplicate = duplicates.get(index);
      const at = duplicate ?? { ms, offset: ++offset };
      if (item.isDone) return;
      finish(item);
      item.resolve({ position: { epoch, partition, ...at }, isDuplicate: duplicate !== undefined });
    });
    if (offset > base) watermark.see(epoch, ms, offset);
    metrics.published.inc(undefined, offset - base);
  }
}

type AppendReply = ['ok', string, number, number, number, number, string];

function finish(item: Item): void {
  item.isDone = true;
  item.onDone?.();
}

function hashId({ scope, id }: { scope: string; id: string }): Buffer {
  return createHash('sha256').update(scope).update('\0').update(id).digest().subarray(0, 16);
}

/** ioredis refused the command before it reached the socket. */
function isUnsent(error: unknown): boolean {
  return error instanceof Error && /isn't writeable/.test(error.message);
}
