import { CallError } from '../core/call-error.js';
import { RelayError } from '../core/errors.js';
import type { Connection } from './connection.js';
import { copyOf } from './copy.js';
import { checkSize, type SizeLimit } from './measure.js';
import { newId } from './new-id.js';
import { wholeNumber } from './options.js';
import type { Repeater } from './repeat.js';

const MAX_MS = 600_000;
const MAX_PENDING = 1000;
/** The relay says itself that the time is over, and whether the handler had begun; this long it is listened to. */
const MARGIN_MS = 1000;
const CANCEL_MS = 5000;
/** What another try with the same id gets over. */
const PASSING: ReadonlySet<string> = new Set(['unavailable', 'too_many_requests', 'shutting_down']);

export interface CallOptions {
  /** Whose method; default: the token's own user. */
  readonly user?: string;
  /** How long the answer is waited for, over all connections, in ms; default 30,000, at most 600,000. */
  readonly timeoutMs?: number;
  /**
   * How long a method that nobody serves just now is waited for, in ms; default: as the relay is set. 0 is not at all, also
   * when its daemon has only lost its connection.
   */
  readonly waitForWorkerMs?: number;
  /** Gives up, and tells the handler so. */
  readonly signal?: AbortSignal;
  /** It may run more than once: so it is sent again when the daemon that had it is gone. Default false. */
  readonly idempotent?: boolean;
  /** The call's name: with the same one, method and params it is the same call, and has its answer. Default: one of its own. */
  readonly id?: string;
}

/** @throws {RelayError} `payload_too_large`, `bad_request` */
function copied(params: unknown, limit: SizeLimit): unknown {
  checkSize('params', params, limit);
  try {
    return copyOf(params);
  } catch (cause) {
    throw new RelayError('bad_request', `params: ${(cause as Error).message}`, { cause });
  }
}

/** Calls of methods, each with one outcome over whatever connections it takes: the same request with the same id is the same call. */
export class Calls {
  /** Those that are being cancelled too. */
  #pending = 0;

  constructor(
    private readonly connection: Connection,
    private readonly repeater: Repeater,
    private readonly limit: SizeLimit,
  ) {}

  /** @throws {CallError} */
  async call(method: string, params: unknown, options: CallOptions): Promise<unknown> {
    const { user, timeoutMs = 30_000, waitForWorkerMs, signal, idempotent = false } = options;
    const endsAt = performance.now() + timeoutMs;
    let id = options.id ?? `c-${newId()}`;
    let isOut = false;
    let mayHaveRun = false;
    // each try sends the same: other params would be another call
    let sent: unknown;
    const attempt = async (leftMs: number): Promise<unknown> => {
      isOut = true;
      const request = { method, params: sent, id, timeoutMs: leftMs, waitForWorkerMs, user, idempotent };
      try {
        return (await this.connection.request('rpc-call', request, leftMs + MARGIN_MS)).result;
      } catch (error) {
        isOut = false;
        mayHaveRun ||= (error as RelayError).mayHaveHappened;
        throw error;
      }
    };
    const isWorthIt = ({ code }: RelayError): boolean => {
      if (PASSING.has(code)) return true;
      if (code !== 'worker_lost' || !idempotent || options.id !== undefined) return false;
      // the call of that name has its outcome
      id = `c-${newId()}`;
      return true;
    };
    const patience = { timeoutMs, marginMs: MARGIN_MS, signal };
    try {
      wholeNumber('timeoutMs', timeoutMs, 1, MAX_MS);
      if (waitForWorkerMs !== undefined) wholeNumber('waitForWorkerMs', waitForWorkerMs, 0, MAX_MS);
      sent = copied(params, this.limit);
      return await this.#counted(() => this.repeater.repeat(patience, attempt, isWorthIt));
    } catch (error) {
      mayHaveRun ||= isOut;
      const isCancelled = signal?.aborted === true;
      if (isCancelled && mayHaveRun) void this.#cancel({ id, user }, endsAt - performance.now());
      if (isCancelled) throw new CallError('cancelled', undefined, { mayHaveRun, cause: signal.reason });
      const { code, message, retryAfterMs, cause } = error as RelayError;
      throw new CallError(code, message, {
        mayHaveRun,
        ...(retryAfterMs !== undefined && { retryAfterMs }),
        ...(cause !== undefined && { cause }),
      });
    }
  }

  /** Tells the relay as long as it could still run. What it answers is of no use to anybody. */
  async #cancel(call: object, timeoutMs: number): Promise<void> {
    const attempt = (): Promise<unknown> => this.connection.request('rpc-cancel', call, CANCEL_MS);
    const isWorthIt = (error: RelayError): boolean => error.retryable || error.mayHaveHappened;
    await this.#counted(() => this.repeater.repeat({ timeoutMs }, attempt, isWorthIt)).catch(() => {});
  }

  async #counted<T>(work: () => Promise<T>): Promise<T> {
    if (this.#pending >= MAX_PENDING) throw new RelayError('overloaded', `${MAX_PENDING} calls wait for their answer`);
    this.#pending++;
    try {
      return await work();
    } finally {
      this.#pending--;
    }
  }
}
