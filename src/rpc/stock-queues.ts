import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import { Connection, type RedisAddress } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript, type Script } from '../redis/script.js';
import { failed, type Outcome, outcomeOfText } from './outcome.js';

const EXPIRE = loadScript(import.meta.url, 'expire', ['common']);
export const STOCK_SCRIPTS: readonly Script[] = [EXPIRE];

const BLOCK_MS = 1000;
const SILENCE_MS = 3000;
/** A queue that has not been called for so long is followed no more. */
const FOLLOW_MS = 15 * 60_000;
/** How old the list of Redis's clients may be that says that a queue has a worker: it costs Redis 3 µs a client. */
const CLIENTS_AGE_MS = 2000;
/** Between two of them. */
const CLIENTS_PAUSE_MS = 200;
/** Queues that one process follows. */
const MAX_FOLLOWED = 1000;

export interface StockQueuesOptions {
  readonly url: RedisAddress;
  readonly commands: Connection;
  readonly keys: Keys;
  readonly pod: string;
  readonly processId: string;
  readonly logger: Logger;
  /** Whether stock BullMQ Workers serve that method. */
  readonly isStock: (target: string) => boolean;
  /** A job has ended. */
  readonly onEnd: (scope: string, id: string, outcome: Outcome) => void;
}

interface Clients {
  readonly at: number;
  readonly names: Promise<ReadonlySet<string> | undefined>;
}

interface Followed {
  readonly scope: string;
  readonly segment: string;
  /** The newest event that was seen. */
  last: string;
  usedAt: number;
}

/**
 * Methods that stock BullMQ Workers serve: their queues keep their events, and one read for all of them says which jobs have ended.
 * The connection for it is opened when the first one is called.
 */
export class StockQueues extends Service {
  readonly #followed = new Map<string, Followed>();
  readonly #stopping = new AbortController();
  #reads: Connection | undefined;
  #running: Promise<unknown> = Promise.resolve();
  #clients: Clients | undefined;

  constructor(private readonly options: StockQueuesOptions) {
    super();
  }

  isStock(scope: string, segment: string): boolean {
    return this.options.isStock(`${scope}/${segment}`);
  }

  /**
   * From now on its jobs' ends are told.
   *
   * @returns false if no worker is connected
   */
  async follow(scope: string, segment: string): Promise<boolean> {
    const { commands, keys } = this.options;
    const key = `${keys.rpc(scope)}${segment}:events`;
    const known = this.#followed.get(key);
    if (known) known.usedAt = performance.now();
    else {
      const newest = await commands.redis.xrevrange(key, '+', '-', 'COUNT', 1);
      const followed = { scope, segment, last: newest[0]?.[0] ?? '0-0', usedAt: performance.now() };
      if (this.#followed.size >= MAX_FOLLOWED) this.#followed.delete(this.#followed.keys().next().value as string);
      this.#followed.set(key, followed);
      this.#open();
    }
    return this.#hasWorker(scope, segment);
  }

  protected async onStart(): Promise<void> {}

  protected async onStop(): Promise<void> {
    this.#stopping.abort();
    this.#reads?.close();
    await within(500, this.#running);
  }

  #open(): void {
    if (this.#reads || this.#stopping.signal.aborted) return;
    const { url, pod } = this.options;
    this.#reads = new Connection({ url, name: `holdfast:${pod}:rpc-events`, silenceMs: SILENCE_MS });
    this.#running = Promise.all([this.#readForever(this.#reads), this.#expireForever()]);
  }

  async #readForever(reads: Connection): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      if (!(await reads.whenUp(500))) continue;
      try {
        const queues = [...this.#followed];
        if (queues.length === 0) {
          await sleep(BLOCK_MS, signal);
          continue;
        }
        const ids = queues.map(([, { last }]) => last);
        const found = await reads.redis.xread(
          'COUNT',
          500,
          'BLOCK',
          BLOCK_MS,
          'STREAMS',
          ...queues.map(([key]) => key),
          ...ids,
        );
        for (const [key, entries] of found ?? []) for (const [id, fields] of entries) this.#onEvent(key, id, fields);
      } catch {
        await sleep(100, signal);
      }
    }
  }

  #onEvent(key: string, id: string, fields: readonly string[]): void {
    const followed = this.#followed.get(key);
    if (!followed) return;
    followed.last = id;
    const event: Record<string, string> = {};
    for (let at = 0; at < fields.length; at += 2) event[fields[at] as string] = fields[at + 1] as string;
    const { jobId, returnvalue, failedReason } = event;
    if (jobId === undefined) return;
    if (event.event === 'completed')
      this.options.onEnd(followed.scope, jobId, outcomeOfText(true, returnvalue ?? 'null'));
    if (event.event === 'failed')
      this.options.onEnd(followed.scope, jobId, failed('handler_error', true, failedReason));
  }

  /** A job whose time is over must not be picked up, also when the process that made it is dead. */
  async #expireForever(): Promise<void> {
    const { commands, keys, processId } = this.options;
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      await sleep(1000, signal);
      for (const [key, { scope, segment, usedAt }] of [...this.#followed]) {
        if (performance.now() - usedAt > FOLLOW_MS) this.#followed.delete(key);
        const base = keys.rpc(scope);
        await commands
          .run(EXPIRE, [`${base}${segment}:wait`], [base, scope, segment, keys.inboxes, processId])
          .catch(() => {});
      }
    }
  }

  /** As BullMQ finds its workers: by the names of their connections. */
  async #hasWorker(scope: string, segment: string): Promise<boolean> {
    const own = `${this.options.keys.rpc(scope).slice(0, -1)}:${Buffer.from(segment).toString('base64')}`;
    const askedAt = performance.now();
    for (;;) {
      const { at, names } = this.#clients ?? this.#ask();
      const known = await names;
      // a Redis that doesn't say can't be asked
      if (!known) return true;
      const age = performance.now() - at;
      if (known.has(own) && age < CLIENTS_AGE_MS) return true;
      // one that has come since is there
      if (!known.has(own) && at >= askedAt) return false;
      if (age < CLIENTS_PAUSE_MS) await sleep(CLIENTS_PAUSE_MS - age, this.#stopping.signal);
      if (this.#stopping.signal.aborted) return true;
      if (this.#clients?.at === at) this.#ask();
    }
  }

  #ask(): Clients {
    this.#clients = { at: performance.now(), names: this.#listClients() };
    return this.#clients;
  }

  async #listClients(): Promise<ReadonlySet<string> | undefined> {
    const { commands, logger } = this.options;
    try {
      const list = String(await commands.redis.call('CLIENT', 'LIST', 'TYPE', 'normal'));
      const names = list.matchAll(/ name=(\S*)/g);
      return new Set([...names].map(([, name = '']) => name.replace(/:w:.*$/, '')));
    } catch (error) {
      logger.debug(
        { event: 'clients_unknown', err: error },
        'Redis does not list its clients: workers are taken to be there',
      );
      return undefined;
    }
  }
}
