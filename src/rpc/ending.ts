import type { DaemonAnswer } from './daemon.js';
import type { StoredFailure } from './outcome.js';
import { encodePayload } from './payload.js';
import { KEEP_MS } from './settings.js';

/** Endings kept for a job that may be picked up again, and their bytes. */
const MAX_REMEMBERED = 10_000;
const MAX_REMEMBERED_BYTES = 64 * 1024 * 1024;
const MAX_ERROR_LENGTH = 4000;

/** How a job ended, as it is stored. */
export interface Ending {
  readonly isResult: boolean;
  /** JSON. */
  readonly answer: string;
  /** A failure's text, for BullMQ's tools. */
  readonly reason: string;
}

export function endingOf(answer: DaemonAnswer, maxBytes: number): Ending {
  if (!answer.ok) return failureEnding('handler_error', true, answer.error);
  try {
    return { isResult: true, answer: encodePayload(answer.result, maxBytes), reason: '' };
  } catch (error) {
    const { code, message } = error as { code: StoredFailure['code']; message: string };
    return failureEnding(code === 'payload_too_large' ? code : 'handler_error', true, message);
  }
}

export function failureEnding(code: StoredFailure['code'], mayHaveRun: boolean, error?: string): Ending {
  const text = error?.slice(0, MAX_ERROR_LENGTH);
  const stored: StoredFailure = { code, mayHaveRun, ...(text !== undefined && { error: text }) };
  return { isResult: false, answer: JSON.stringify(stored), reason: text ?? code };
}

interface Remembered {
  readonly ending: Ending;
  /** Monotonic ms. */
  readonly until: number;
}

/** Endings of a process's jobs, for a minute beyond their deadlines: a job may come again that Redis lost, or was not told the end of. */
export class RememberedEndings {
  readonly #endings = new Map<string, Remembered>();
  #bytes = 0;

  has(key: string): boolean {
    return this.#endings.has(key);
  }

  get(key: string): Ending | undefined {
    return this.#endings.get(key)?.ending;
  }

  /** @param endsAt the job's deadline, monotonic ms */
  set(key: string, ending: Ending, endsAt: number): void {
    this.#delete(key);
    this.#endings.set(key, { ending, until: endsAt + KEEP_MS });
    this.#bytes += ending.answer.length;
    const now = performance.now();
    for (const [oldest, { until }] of this.#endings) {
      const isFull = this.#endings.size > MAX_REMEMBERED || this.#bytes > MAX_REMEMBERED_BYTES;
      if (until > now && !isFull) break;
      this.#delete(oldest);
    }
  }

  #delete(key: string): void {
    this.#bytes -= this.#endings.get(key)?.ending.answer.length ?? 0;
    this.#endings.delete(key);
  }
}
