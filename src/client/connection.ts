import { io, type ManagerOptions, type Socket, type SocketOptions } from 'socket.io-client';
import { fullJitter } from '../core/backoff.js';
import { RelayError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import { abortable } from './abortable.js';
import { defer } from './deferred.js';
import { permissionsOf, type Token, TokenSource } from './token-source.js';
import { fromWire } from './wire-errors.js';

/** A connection that lasted so long begins the back-off anew. */
const STABLE_MS = 5000;
/** The relay closes the transport after `holdfast:drain` and `holdfast:closing`; a client that can't see it does so itself. */
const FAREWELL_MS = 2000;
const RENEW_RETRY_MS = 1000;
const RENEW_RETRY_CAP_MS = 30_000;
const MAX_TIMER_MS = 2 ** 31 - 1;

export interface ConnectionOptions {
  readonly url: string;
  readonly path: string;
  readonly token: Token;
  readonly auth: Readonly<Record<string, unknown>>;
  readonly connectTimeoutMs: number;
  readonly reconnectDelayMs: number;
  readonly reconnectDelayMaxMs: number;
  readonly socketOptions: Partial<ManagerOptions & SocketOptions>;
}

export interface ConnectionHooks {
  /** The position that the socket should go on behind. */
  resumeFrom(): string | undefined;
  /** Before anything but stale events of the connection before arrives. */
  onConnected(isRecovered: boolean): void;
  /** It comes back by itself. */
  onLost(error: RelayError): void;
  onClosed(error: RelayError | undefined): void;
  onEvent(event: string, args: readonly unknown[]): void;
  /** Rooms may have been left, as the token at hand doesn't allow them. */
  onPermissions(): void;
  onError(error: RelayError): void;
}

interface Ended {
  readonly error: RelayError;
  /** Instead of the back-off. */
  readonly delayMs?: number;
  readonly isFatal?: boolean;
}

/**
 * Keeps one stock socket connected. The stock reconnection is off: it stops after CONNECT_ERROR and after a server's
 * disconnect, can be left in `opening` with a dead engine, and begins its back-off anew at every opened transport. Here each
 * try has one deadline and one end, whatever the socket believes of itself.
 */
export class Connection {
  readonly socket: Socket;
  readonly #tokens: TokenSource;
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;
  #closedBy: RelayError | undefined;
  #token = '';
  #ended: ((ended: Ended) => void) | undefined;
  /** What the relay, or this side, said about the end that comes. */
  #farewell: Ended | undefined;
  #leastDelayMs = 0;
  #session = 0;
  #timers = new Set<ReturnType<typeof setTimeout>>();
  /** The next one: a try that ends before the relay has answered leaves who waits waiting. */
  #nextConnected = defer<void>();

  constructor(
    private readonly options: ConnectionOptions,
    private readonly hooks: ConnectionHooks,
  ) {
    this.#tokens = new TokenSource(options.token);
    const { url, path, socketOptions } = options;
    this.socket = io(url, {
      transports: ['websocket'],
      ...socketOptions,
      path,
      forceNew: true,
      reconnection: false,
      autoConnect: false,
      auth: (send) => send(this.#auth()),
    });
    this.socket.on('connect', () => this.#connected());
    this.socket.on('disconnect', (reason) => this.#disconnected(reason));
    this.socket.on('connect_error', (error) => this.#refused(error));
    this.socket.onAny((event: string, ...args: unknown[]) => this.#take(event, args));
  }

  /** Changes with each connection: what began in one must not go on in another. */
  get session(): number {
    return this.#session;
  }

  get isConnected(): boolean {
    return this.socket.connected;
  }

  get isClosed(): boolean {
    return this.#stop.signal.aborted;
  }

  start(): void {
    this.#running ??= this.#run();
  }

  async close(error?: RelayError): Promise<void> {
    this.#closedBy ??= error;
    this.#stop.abort();
    this.#nextConnected.reject(this.closedError());
    this.#ended?.({ error: this.closedError() });
    this.socket.disconnect();
    await this.#running;
  }

  closedError(): RelayError {
    return this.#closedBy ?? new RelayError('cancelled', 'the client is closed');
  }

  /** @throws {RelayError} what it was closed with */
  connected(): Promise<void> {
    if (this.#stop.signal.aborted) return Promise.reject(this.closedError());
    return this.socket.connected ? Promise.resolve() : this.#nextConnected.promise;
  }

  /** Loses the connection on purpose; the next one goes on where `resumeFrom` says, at once. */
  reconnect(error: RelayError): void {
    this.#farewell = { error, delayMs: 0 };
    this.#cut();
  }

  /**
   * One request of the protocol, not repeated.
   *
   * @throws {RelayError} what the relay answered; `unavailable`, with `mayHaveHappened` once it was sent, when no answer comes
   */
  async request(event: string, payload: unknown, withinMs: number): Promise<Readonly<Record<string, unknown>>> {
    if (!this.socket.connected) throw new RelayError('unavailable', 'not connected');
    let answer: unknown;
    try {
      answer = await this.socket.timeout(withinMs).emitWithAck(event, payload);
    } catch (cause) {
      // what JSON can't hold was not sent
      if (cause instanceof TypeError || cause instanceof RangeError)
        throw new RelayError('bad_request', cause.message, { cause });
      throw new RelayError('unavailable', 'no answer', { mayHaveHappened: true, cause });
    }
    if ((answer as { ok?: unknown } | undefined)?.ok !== true) throw fromWire(answer);
    return answer as Readonly<Record<string, unknown>>;
  }

  // --- one try after the other

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    const { reconnectDelayMs, reconnectDelayMaxMs } = this.options;
    for (let tries = 0; !signal.aborted; ) {
      const startedAt = performance.now();
      const { error, delayMs, isFatal } = await this.#try();
      this.#clear();
      // the stock client's own state begins anew too, whatever it was left in
      this.socket.disconnect();
      if (signal.aborted) break;
      if (isFatal) {
        this.hooks.onClosed(error);
        break;
      }
      this.hooks.onLost(error);
      if (performance.now() - startedAt > STABLE_MS) tries = 0;
      const leastMs = Math.max(this.#leastDelayMs, error.retryAfterMs ?? 0);
      this.#leastDelayMs = 0;
      const waitMs = delayMs ?? fullJitter(tries++, reconnectDelayMs, reconnectDelayMaxMs);
      await sleep(Math.max(leastMs, waitMs), signal);
    }
  }

  /** Resolves when the connection has ended, or didn't come about. */
  async #try(): Promise<Ended> {
    const { connectTimeoutMs } = this.options;
    this.#farewell = undefined;
    const end = defer<Ended>();
    this.#ended = end.resolve;
    const late = (what: string) => () => end.resolve({ error: new RelayError('unavailable', `${what} took too long`) });
    const watchdog = this.#after(connectTimeoutMs, late('the token'));
    const token = await Promise.race([end.promise, this.#tokens.get().catch((error: unknown) => this.#noToken(error))]);
    this.#cancel(watchdog);
    if (typeof token !== 'string') return token;
    if (this.#stop.signal.aborted) return end.promise;
    this.#token = token;
    this.#after(connectTimeoutMs, () => {
      if (!this.socket.connected) late('connecting')();
    });
    const cut = { error: new RelayError('unavailable', 'the connection was cut') };
    try {
      this.socket.connect();
      // a stock manager doesn't notice an engine that closes before it was open
      this.socket.io.engine.once('close', () => {
        // later, as a refusal closes the engine before it is told
        if (!this.socket.connected) queueMicrotask(() => end.resolve(cut));
      });
    } catch (cause) {
      end.resolve({ error: new RelayError('unavailable', undefined, { cause }) });
    }
    return end.promise;
  }

  #auth(): object {
    const position = this.hooks.resumeFrom();
    return { ...this.options.auth, token: this.#token, ...(position !== undefined && { position, offset: position }) };
  }

  #noToken(cause: unknown): Ended {
    if (cause instanceof RelayError && !cause.retryable) return { error: cause, isFatal: true };
    const error = new RelayError('unavailable', 'the token cannot be had', { cause });
    this.hooks.onError(error);
    return { error };
  }

  #connected(): void {
    this.#session++;
    this.#nextConnected.resolve();
    this.#nextConnected = defer();
    this.#renewLater(this.#tokens.renewInMs);
    this.hooks.onConnected(this.socket.recovered);
  }

  #disconnected(reason: string): void {
    this.#session++;
    this.#ended?.(this.#farewell ?? { error: new RelayError('unavailable', `the connection was lost: ${reason}`) });
  }

  /** Of the transport, which has no code and may work next time; or the relay's own CONNECT_ERROR. */
  #refused(cause: Error & { data?: unknown }): void {
    const isRelays = typeof (cause.data as { code?: unknown } | undefined)?.code === 'string';
    if (!isRelays) return this.#ended?.({ error: new RelayError('unavailable', cause.message, { cause }) });
    const error = fromWire(cause.data, cause.message);
    this.#ended?.(this.#judge(error, error.retryable));
  }

  /** A refusal of the token is final only if there is no other: the next try asks for it. */
  #judge(error: RelayError, isRetryable: boolean): Ended {
    if (!isOfToken(error)) return { error, isFatal: !isRetryable };
    this.#tokens.refuse(this.#token, error);
    return { error, isFatal: this.#tokens.isOnly };
  }

  // --- what the relay says

  #take(event: string, args: readonly unknown[]): void {
    const [told] = args as readonly (Readonly<Record<string, unknown>> | undefined)[];
    switch (event) {
      case 'holdfast:drain': {
        const delayMs = Number(told?.reconnectInMs) || 0;
        return this.#leave({ error: new RelayError('shutting_down'), delayMs });
      }
      case 'holdfast:closing': {
        const error = fromWire(told, typeof told?.reason === 'string' ? told.reason : undefined);
        return this.#leave(this.#judge(error, told?.reconnect !== false));
      }
      case 'device:throttled':
        this.#leastDelayMs = Number(told?.retry_after_ms) || 0;
        return;
      default:
        this.hooks.onEvent(event, args);
    }
  }

  #leave(farewell: Ended): void {
    this.#farewell = farewell;
    this.#after(FAREWELL_MS, () => this.#cut());
  }

  /** The engine, not the socket: what a `disconnect()` says to the relay ends the session there. */
  #cut(): void {
    this.socket.io.engine?.close();
  }

  // --- the next token

  #renewLater(delayMs: number | undefined, tries = 0): void {
    if (delayMs === undefined) return;
    this.#after(Math.min(delayMs, MAX_TIMER_MS), () => void this.#renew(tries));
  }

  async #renew(tries: number): Promise<void> {
    const session = this.#session;
    const isOver = (): boolean => session !== this.#session || this.#stop.signal.aborted;
    let token: string | undefined;
    try {
      token = await abortable(this.#tokens.next(), this.#stop.signal, () => this.closedError());
      if (isOver()) return;
      if (token !== this.#token) {
        await this.request('auth-refresh', { token }, this.options.connectTimeoutMs);
        const hasChanged = permissionsOf(token) === undefined || permissionsOf(token) !== permissionsOf(this.#token);
        this.#token = token;
        this.#tokens.accept(token);
        if (hasChanged) this.hooks.onPermissions();
        return this.#renewLater(Math.max(RENEW_RETRY_MS, this.#tokens.renewInMs ?? MAX_TIMER_MS));
      }
    } catch (cause) {
      const error =
        cause instanceof RelayError ? cause : new RelayError('unavailable', 'the token cannot be had', { cause });
      if (token !== undefined && isOfToken(error)) this.#tokens.refuse(token, error);
      if (isOver()) return;
      const isFinal = token === undefined && !error.retryable && !this.#tokens.isRefusal(error);
      if (isFinal) return this.#ended?.({ error, isFatal: true });
      this.hooks.onError(error);
    }
    if (isOver()) return;
    // the old one still holds; when it ends the relay says so, and the next connect asks again
    const waitMs = Math.min(RENEW_RETRY_CAP_MS, RENEW_RETRY_MS * 2 ** tries);
    this.#renewLater(waitMs, tries + 1);
  }

  // --- timers, all of one try

  #after(ms: number, work: () => void): ReturnType<typeof setTimeout> {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      work();
    }, ms);
    this.#timers.add(timer);
    return timer;
  }

  #cancel(timer: ReturnType<typeof setTimeout>): void {
    clearTimeout(timer);
    this.#timers.delete(timer);
  }

  #clear(): void {
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
  }
}

function isOfToken({ code }: RelayError): boolean {
  return code === 'token_expired' || code === 'unauthorized';
}
