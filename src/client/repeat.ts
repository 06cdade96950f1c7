import { fullJitter } from '../core/backoff.js';
import { RelayError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import { abortable } from './abortable.js';
import type { Connection } from './connection.js';

const BACKOFF_BASE_MS = 100;
const BACKOFF_CAP_MS = 5000;

export interface Patience {
  readonly timeoutMs: number;
  /** How much longer the answer to what was sent in time is waited for; default 0. */
  readonly marginMs?: number;
  readonly signal?: AbortSignal | undefined;
}

/** Asks on one connection after the other, until there is an answer. */
export class Repeater {
  /** Of all that is asked: one signal would warn of so many listeners. */
  readonly #limits = new Set<AbortController>();

  constructor(private readonly connection: Connection) {}

  /** What is asked ends with what the connection was closed with. */
  close(): void {
    for (const limit of this.#limits) limit.abort();
  }

  /**
   * @param attempt one try, which has `leftMs` to its end
   * @throws {RelayError} what `isWorthIt` wants no other try for; `timeout` when it is given up, with the last error as its
   * cause; what the client was closed with
   */
  async repeat<T>(
    { timeoutMs, marginMs = 0, signal }: Patience,
    attempt: (leftMs: number) => Promise<T>,
    isWorthIt: (error: RelayError) => boolean,
  ): Promise<T> {
    const endsAt = performance.now() + timeoutMs;
    const limit = new AbortController();
    const stop = (): void => limit.abort();
    let isAsking = false;
    let timer = setTimeout(() => {
      if (isAsking) timer = setTimeout(stop, marginMs);
      else stop();
    }, timeoutMs);
    if (signal?.aborted) stop();
    signal?.addEventListener('abort', stop, { once: true });
    this.#limits.add(limit);
    let last: RelayError | undefined;
    const givenUp = (): RelayError => new RelayError('timeout', undefined, { cause: last });
    try {
      for (let tries = 0; ; tries++) {
        await abortable(this.connection.connected(), limit.signal, givenUp);
        const leftMs = Math.ceil(endsAt - performance.now());
        if (leftMs <= 0 || limit.signal.aborted) throw givenUp();
        try {
          isAsking = true;
          return await abortable(attempt(leftMs), limit.signal, givenUp);
        } catch (error) {
          isAsking = false;
          last = error as RelayError;
          if (limit.signal.aborted || !isWorthIt(last)) throw last;
        }
        const waitMs = Math.max(last.retryAfterMs ?? 0, fullJitter(tries, BACKOFF_BASE_MS, BACKOFF_CAP_MS));
        await sleep(Math.min(waitMs, endsAt - performance.now()), limit.signal);
      }
    } catch (error) {
      throw this.connection.isClosed ? this.connection.closedError() : error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', stop);
      this.#limits.delete(limit);
    }
  }
}
