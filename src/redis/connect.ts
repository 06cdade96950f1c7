import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import { Redis, type RedisOptions } from 'ioredis';
import { fullJitter } from '../core/backoff.js';
import type { Script } from './script.js';

type Argument = string | number | Buffer;

/** The error code that Redis answered with (`NOGROUP`, `OOM` …), or '' for a fault of the wire. */
export function replyCode(error: unknown): string {
  const match = error instanceof Error ? /^(?:ERR )?([A-Z]{3,})\b/.exec(error.message) : null;
  return error instanceof Error && error.name === 'ReplyError' ? (match?.[1] ?? 'ERR') : '';
}

/** Where Redis is: a `redis://` or `rediss://` URL, or what ioredis would be given. */
export type RedisAddress = string | RedisOptions;

export interface ConnectionOptions {
  readonly url: RedisAddress;
  /** Shown in CLIENT LIST. */
  readonly name: string;
  /**
   * A connection that brings no byte for this long while a command waits is torn down, in ms.
   * A blocking read must stay below it: it is the only option of ioredis that wakes a silent one.
   */
  readonly silenceMs?: number;
  /** Scripts of one turn of the loop leave in one write: a fifth less CPU where many run at once, on either side. */
  readonly joinsWrites?: boolean;
  /** It connects at `open()`, not when it is made: so what never starts has nothing to close. */
  readonly opensLater?: boolean;
}

interface ConnectionEvents {
  ready: [];
  down: [];
  closed: [];
}

const CONNECT_MS = 1000;

/**
 * One connection to Redis that fails fast: it queues nothing while it is down and sends nothing twice, because a command
 * that runs after its caller was told `unavailable` is worse than one that didn't. It reconnects by itself, with jitter.
 */
export class Connection extends EventEmitter<ConnectionEvents> {
  /** Counts the connections made, so that a caller can tell whether the one it knew is still there. */
  generation = 0;
  lastError = '';
  #redis: Redis;
  #isUp = false;
  #isClosed = false;
  /** The stream that is corked until the turn of the loop ends. */
  #joining: object | undefined;

  constructor(private readonly options: ConnectionOptions) {
    super();
    this.setMaxListeners(0);
    this.#redis = this.#make();
    if (!options.opensLater) this.open();
  }

  get isUp(): boolean {
    return this.#isUp;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** For commands. They reject at once while the connection is down. */
  get redis(): Redis {
    return this.#redis;
  }

  /** Bytes received on the present socket: tells a slow link from a dead one. */
  get bytesRead(): number {
    return this.#redis.stream?.bytesRead ?? 0;
  }

  /** Resolves when the connection is up, or after `ms`, or when it is closed. */
  whenUp(ms: number): Promise<boolean> {
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        this.off('ready', done).off('closed', done);
        resolve(this.#isUp);
      };
      const timer = setTimeout(done, ms);
      if (this.#isUp || this.#isClosed) done();
      else this.on('ready', done).on('closed', done);
    });
  }

  /** Connects one that opens later, or that was closed. */
  open(): void {
    if (this.#redis.status !== 'wait' && !this.#isClosed) return;
    if (this.#isClosed) this.#redis = this.#make();
    this.#isClosed = false;
    // failures come as events
    this.#redis.connect().catch(() => {});
  }

  async run(script: Script, keys: readonly string[], args: readonly Argument[]): Promise<unknown> {
    if (this.options.joinsWrites) this.joinWrites();
    try {
      return await this.#redis.evalsha(script.sha, keys.length, ...keys, ...args);
    } catch (error) {
      if (replyCode(error) !== 'NOSCRIPT') throw error;
      return this.#redis.eval(script.source, keys.length, ...keys, ...args);
    }
  }

  /** What is sent from now to the end of this turn of the loop leaves in one write. */
  joinWrites(): void {
    const stream = this.#redis.stream as Partial<Socket> | undefined;
    if (!stream || this.#joining === stream) return;
    this.#joining = stream;
    stream.cork?.();
    setImmediate(() => {
      stream.uncork?.();
      if (this.#joining === stream) this.#joining = undefined;
    });
  }

  /** As `run`, with Buffers for texts in the answer. */
  async runBuffer(script: Script, keys: readonly string[], args: readonly Argument[]): Promise<unknown> {
    try {
      return await this.#redis.callBuffer('EVALSHA', script.sha, keys.length, ...keys, ...args);
    } catch (error) {
      if (replyCode(error) !== 'NOSCRIPT') throw error;
      return this.#redis.callBuffer('EVAL', script.source, keys.length, ...keys, ...args);
    }
  }

  /** Commands that `send` sends leave in one write. */
  inOneWrite(send: () => void): void {
    const stream = this.#redis.stream as Partial<Socket> | undefined;
    stream?.cork?.();
    try {
      send();
    } finally {
      stream?.uncork?.();
    }
  }

  /** Tears the socket down without flushing: what it still holds must not reach Redis. The client then reconnects. */
  reset(): void {
    // at once: until the socket's end is noticed, commands would go into it
    this.#down();
    const stream = this.#redis.stream as Partial<Socket> | undefined;
    // a TLS socket has no reset of its own
    if (stream?.resetAndDestroy) stream.resetAndDestroy();
    else stream?.destroy?.();
  }

  /** A new client in place of one that is wedged. */
  rebuild(): void {
    if (this.#isClosed) return;
    const old = this.#redis;
    this.#down();
    this.#redis = this.#make();
    this.#redis.connect().catch(() => {});
    old.stream?.destroy();
    old.disconnect();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#down();
    this.#redis.disconnect();
    this.emit('closed');
  }

  #down(): void {
    if (!this.#isUp) return;
    this.#isUp = false;
    this.emit('down');
  }

  #make(): Redis {
    const { url } = this.options;
    const options = redisOptions(this.options);
    const redis = typeof url === 'string' ? new Redis(url, options) : new Redis({ ...url, ...options });
    redis.on('error', (error: Error) => {
      this.lastError = error.message;
    });
    let handshake: NodeJS.Timeout | undefined;
    redis.on('connect', () => {
      // ioredis waits without limit for the answers of its own handshake
      clearTimeout(handshake);
      handshake = setTimeout(() => {
        if (this.#redis === redis && redis.status !== 'ready') this.reset();
      }, CONNECT_MS);
    });
    redis.on('ready', () => {
      clearTimeout(handshake);
      if (this.#redis !== redis || this.#isClosed) return;
      this.generation++;
      this.#isUp = true;
      this.emit('ready');
    });
    redis.on('close', () => {
      clearTimeout(handshake);
      if (this.#redis === redis) this.#down();
    });
    return redis;
  }
}

function redisOptions({ name, silenceMs }: ConnectionOptions): RedisOptions {
  return {
    lazyConnect: true,
    // CLIENT SETNAME takes printable ASCII only
    connectionName: encodeURIComponent(name),
    // the plain replies that scripts and raw commands are read as
    protocol: 2,
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    autoResubscribe: false,
    maxRetriesPerRequest: 0,
    connectTimeout: CONNECT_MS,
    disconnectTimeout: 100,
    socketTimeout: silenceMs,
    keepAlive: 5000,
    maxLoadingRetryTime: 500,
    retryStrategy: (tries) => 20 + fullJitter(tries, 25, 500),
    reconnectOnError: (error) => (/^(READONLY|MASTERDOWN)/.test(error.message) ? 1 : false),
  };
}
