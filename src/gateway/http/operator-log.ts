import { RelayError } from '../../core/errors.js';
import { LogAccess } from '../../log/index.js';
import { replyCode } from '../../redis/connect.js';
import type { Keys } from '../../redis/keys.js';
import { NotFound } from './api.js';

const UP_MS = 2000;
/** Redis says so of what is set up wrongly, and says it again at the next try. */
const PERMANENT = new Set(['ERR', 'NOPERM', 'NOAUTH', 'WRONGTYPE']);
/** Nothing is appended here. */
const NO_LIMITS = { maxEntries: 0, maxBytes: 0, idWindowMs: 0 };

export interface OperatorLogOptions {
  readonly url: string;
  readonly keys: Keys;
  readonly pod: string;
}

/** The log for operators, over a connection of their own, made when the first of them asks: what they ask may take long. */
export class OperatorLog {
  #log: LogAccess | undefined;
  #isClosed = false;

  constructor(private readonly options: OperatorLogOptions) {}

  /** @throws {RelayError} `unavailable` too */
  async look<T>(work: (log: LogAccess) => Promise<T>): Promise<T> {
    const log = await this.#up();
    try {
      return await work(log);
    } catch (error) {
      throw toFailure(error, false);
    }
  }

  /**
   * As {@link look}, for what changes something.
   *
   * @throws {RelayError} `unavailable` too, with `mayHaveHappened`: some of it may be done
   */
  async change<T>(work: (log: LogAccess) => Promise<T>): Promise<T> {
    const log = await this.#up();
    try {
      return await work(log);
    } catch (error) {
      throw toFailure(error, true);
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#log?.[Symbol.asyncDispose]();
  }

  async #up(): Promise<LogAccess> {
    if (this.#isClosed) throw new RelayError('shutting_down');
    const { url, keys, pod } = this.options;
    this.#log ??= new LogAccess(url, keys, NO_LIMITS, { name: `holdfast:${pod}:operators` });
    if (!(await this.#log.whenUp(UP_MS))) throw new RelayError('unavailable');
    return this.#log;
  }
}

/**
 * How many partitions it has.
 *
 * @throws {NotFound} it was never used
 */
export async function existingTopic(log: LogAccess, topic: string): Promise<number> {
  const partitions = await log.partitionCount(topic);
  if (partitions === 0) throw new NotFound(`no topic ${JSON.stringify(topic)} is known here`);
  return partitions;
}

function toFailure(cause: unknown, mayHaveHappened: boolean): unknown {
  if (cause instanceof RelayError) return cause;
  const code = replyCode(cause);
  if (PERMANENT.has(code)) return cause;
  // ioredis has no class for a connection that went down: a fault of ours looks the same only where it is a TypeError
  if (code === '' && cause instanceof TypeError) return cause;
  const text = code === '' ? undefined : `Redis refuses (${code})`;
  return new RelayError('unavailable', text, { mayHaveHappened, cause });
}
