import { fullJitter } from '../core/backoff.js';
import type { RelayError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import type { Connection } from './connection.js';

const BACKOFF_BASE_MS = 200;
const BACKOFF_CAP_MS = 5000;
/** Below what the relay lets a socket ask at once. */
const AT_ONCE = 64;
/** What holds for the name as long as it and the token are the same. Anything else, a fault of the relay's too, may pass. */
const FINAL: ReadonlySet<string> = new Set(['permission_denied', 'bad_request']);

export type Answer = Readonly<Record<string, unknown>>;

export interface AskOptions {
  readonly connection: Connection;
  readonly signal: AbortSignal;
  readonly onError: (error: RelayError) => void;
}

/**
 * What has to hold on this connection: repeated while that can help, it is wanted, and the connection is the same.
 *
 * @returns `undefined` when it is no longer wanted, or the connection is another
 */
export async function ask(
  { connection, signal, onError }: AskOptions,
  command: string,
  payload: object,
  withinMs: number,
  isWanted: () => boolean,
): Promise<Answer | undefined> {
  const { session } = connection;
  const isStill = (): boolean => session === connection.session && connection.isConnected && isWanted();
  for (let tries = 0; isStill(); tries++) {
    try {
      const answer = await connection.request(command, payload, withinMs);
      return isStill() ? answer : undefined;
    } catch (cause) {
      const error = cause as RelayError;
      if (!isStill()) return undefined;
      if (FINAL.has(error.code)) throw error;
      if (!error.retryable && tries === 0) onError(error);
      // no answer on a living connection: what the relay makes of it can't be known, so the connection is given up
      if (error.cause !== undefined) {
        connection.reconnect(error);
        return undefined;
      }
      const waitMs = fullJitter(tries, BACKOFF_BASE_MS, BACKOFF_CAP_MS);
      await sleep(Math.max(error.retryAfterMs ?? 0, waitMs), signal);
    }
  }
  return undefined;
}

/** So many at a time as a socket may ask. */
export async function inTurns<T>(all: readonly T[], work: (one: T) => Promise<void>): Promise<void> {
  const waiting = [...all];
  while (waiting.length > 0) await Promise.all(waiting.splice(0, AT_ONCE).map(work));
}
