import { fullJitter } from '../core/backoff.js';
import { RelayError } from '../core/errors.js';
import { sleep } from '../core/sleep.js';
import { abortable } from './abortable.js';
import type { Connection } from './connection.js';

const BACKOFF_BASE_MS = 100;
const BACKOFF_CAP_MS = 5000;
/** The relay answers within 2 s or not at all. */
const ACK_MS = 5000;

export interface PublishOptions {
  /** The event's name for ever: publishing it again with the same id lands once, for 2 minutes. Default: one of its own. */
  readonly id?: string;
  /** To those who are connected now, at most once: never repeated, never waiting for a connection. Default false. */
  readonly ephemeral?: boolean;
  /** How long it is tried, in ms; default 30,000, at most 60,000, so that a late try still meets its id. */
  readonly timeoutMs?: number;
  /** Gives up. What was sent may have happened, and the error says so. */
  readonly signal?: AbortSignal;
}

export interface Published {
  readonly id: string;
  /** Of the entry; absent for an ephemeral event. Not a place to go on behind. */
  readonly position: string | undefined;
  /** An earlier try had landed. */
  readonly isDuplicate: boolean;
}

export interface PublishRequest {
  readonly room: string;
  readonly event: string;
  readonly data: unknown;
  readonly id: string;
  readonly ephemeral?: true;
}

/** Tries with the same id until it is known to have landed, or why it can't. */
export async function publishOnce(
  connection: Connection,
  request: PublishRequest,
  { timeoutMs, signal }: { readonly timeoutMs: number; readonly signal: AbortSignal | undefined },
): Promise<Published> {
  const limit = new AbortController();
  const stop = (): void => limit.abort();
  const timer = setTimeout(stop, timeoutMs);
  if (signal?.aborted) stop();
  signal?.addEventListener('abort', stop, { once: true });
  let last: RelayError | undefined;
  let mayHaveHappened = false;
  const givenUp = (): RelayError => {
    const code = signal?.aborted ? 'cancelled' : (last?.code ?? 'timeout');
    return new RelayError(code, undefined, { mayHaveHappened, cause: signal?.aborted ? signal.reason : last });
  };
  try {
    for (let tries = 0; !limit.signal.aborted; tries++) {
      if (!request.ephemeral) await abortable(connection.connected(), limit.signal, givenUp);
      try {
        // until its answer is there, a try that is given up may have happened
        const answering = connection.request('publish', request, ACK_MS);
        const unknown = (): RelayError => new RelayError('unavailable', undefined, { mayHaveHappened: true });
        const { position, duplicate } = await abortable(answering, limit.signal, unknown);
        return {
          id: request.id,
          position: typeof position === 'string' ? position : undefined,
          isDuplicate: duplicate === true,
        };
      } catch (error) {
        last = error as RelayError;
        mayHaveHappened ||= last.mayHaveHappened;
      }
      if (request.ephemeral || !(last.retryable || last.mayHaveHappened)) break;
      await sleep(Math.max(last.retryAfterMs ?? 0, fullJitter(tries, BACKOFF_BASE_MS, BACKOFF_CAP_MS)), limit.signal);
    }
    throw limit.signal.aborted ? givenUp() : last;
  } catch (error) {
    // an answer of a later try says nothing of the earlier ones
    if (!(error instanceof RelayError) || !mayHaveHappened || error.mayHaveHappened) throw error;
    throw new RelayError(error.code, error.message, { mayHaveHappened, cause: error });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', stop);
  }
}
