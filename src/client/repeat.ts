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
  /** Of the client. */
  readonly closed: AbortSignal;
}

/**
 * Asks on one connection after the other until there is an answer, or an error that `isWorthIt` doesn't want another try for.
 *
 * @throws {RelayError} that error; `timeout` when it is given up, with the last one as its cause; what the client was closed with
 */
export async function repeat<T>(
  connection: Connection,
  { timeoutMs, marginMs = 0, signal, closed }: Patience,
  attempt: (leftMs: number) => Promise<T>,
  isWorthIt: (error: RelayError) => boolean,
): Promise<T> {
  const endsAt = performance.now() + timeoutMs;
  const limit = new AbortController();
  const stop = (): void => limit.abort();
  const timer = setTimeout(stop, timeoutMs + marginMs);
  for (const end of [signal, closed]) {
    if (end?.aborted) stop();
    end?.addEventListener('abort', stop, { once: true });
  }
  let last: RelayError | undefined;
  const givenUp = (): RelayError =>
    closed.aborted ? connection.closedError() : new RelayError('timeout', undefined, { cause: last });
  try {
    for (let tries = 0; ; tries++) {
      await abortable(connection.connected(), limit.signal, givenUp);
      const leftMs = Math.ceil(endsAt - performance.now());
      if (leftMs <= 0 || limit.signal.aborted) throw givenUp();
      try {
        return await abortable(attempt(leftMs), limit.signal, givenUp);
      } catch (error) {
        last = error as RelayError;
        if (limit.signal.aborted || !isWorthIt(last)) throw last;
      }
      const waitMs = Math.max(last.retryAfterMs ?? 0, fullJitter(tries, BACKOFF_BASE_MS, BACKOFF_CAP_MS));
      await sleep(Math.min(waitMs, endsAt - performance.now()), limit.signal);
    }
  } finally {
    clearTimeout(timer);
    for (const end of [signal, closed]) end?.removeEventListener('abort', stop);
  }
}
