/**
 * The one table of error codes. A code is never reused for another meaning; callers match on it, never on text.
 * `docs/protocol.md` prints the same table, and a test compares the two.
 */
export const ERROR_CODES = {
  no_worker: { status: 503, retryable: true, closes: false, text: 'RPC method not available' },
  worker_lost: { status: 503, retryable: true, closes: false, text: 'RPC target disconnected' },
  handler_error: { status: 500, retryable: false, closes: false, text: 'the handler failed' },
  timeout: { status: 504, retryable: true, closes: false, text: 'operation has timed out' },
  cancelled: { status: 499, retryable: false, closes: false, text: 'cancelled' },
  overloaded: { status: 429, retryable: true, closes: false, text: 'too much work is waiting' },
  unavailable: { status: 503, retryable: true, closes: false, text: 'the log cannot be reached' },
  unauthorized: { status: 401, retryable: false, closes: true, text: 'Invalid authentication token' },
  token_expired: { status: 401, retryable: false, closes: true, text: 'the token has expired' },
  permission_denied: { status: 403, retryable: false, closes: false, text: 'not allowed by the token' },
  conflict: { status: 409, retryable: false, closes: false, text: 'the id was used for something else' },
  payload_too_large: { status: 413, retryable: false, closes: false, text: 'the payload is too large' },
  bad_request: { status: 400, retryable: false, closes: false, text: 'bad request' },
  position_lost: { status: 416, retryable: false, closes: false, text: 'the position is no longer in the log' },
  too_many_requests: { status: 429, retryable: true, closes: false, text: 'too many requests' },
  session_replaced: { status: 409, retryable: false, closes: true, text: 'another connection took over' },
  tenant_inactive: { status: 403, retryable: false, closes: true, text: 'the tenant is not active' },
  slow_consumer: { status: 503, retryable: true, closes: true, text: 'the client reads too slowly' },
  shutting_down: { status: 503, retryable: true, closes: true, text: 'the pod is shutting down' },
  internal: { status: 500, retryable: false, closes: false, text: 'Internal error' },
} as const satisfies Record<string, { status: number; retryable: boolean; closes: boolean; text: string }>;

export type ErrorCode = keyof typeof ERROR_CODES;

export interface RelayErrorFields {
  /** The outcome is unknown: the operation may have taken effect. Retry it with the same id. */
  readonly mayHaveHappened?: boolean;
  /** Wait at least this long before the next try, in ms. */
  readonly retryAfterMs?: number;
}

/** What every room throws. `code` says what happened, `cause` holds the first failure. */
export class RelayError extends Error {
  override readonly name = 'RelayError';
  readonly code: ErrorCode;
  readonly mayHaveHappened: boolean;
  readonly retryAfterMs: number | undefined;

  constructor(code: ErrorCode, message?: string, fields: RelayErrorFields & { cause?: unknown } = {}) {
    super(message ?? ERROR_CODES[code].text, fields.cause === undefined ? undefined : { cause: fields.cause });
    this.code = code;
    this.mayHaveHappened = fields.mayHaveHappened ?? false;
    this.retryAfterMs = fields.retryAfterMs;
  }

  get retryable(): boolean {
    return ERROR_CODES[this.code].retryable;
  }

  get status(): number {
    return ERROR_CODES[this.code].status;
  }
}

/** What crosses the wire for a failure; acks put `ok: false` before it. Holds no stack and no cause. */
export interface WireError {
  readonly error: string;
  readonly code: ErrorCode;
  readonly retryable: boolean;
  readonly mayHaveHappened?: true;
  readonly retryAfterMs?: number;
}

/** Any thrown value as its wire form. What is no RelayError is `internal`, and its text stays here. */
export function toWireError(error: unknown): WireError {
  const known = error instanceof RelayError ? error : new RelayError('internal');
  return {
    error: known.message,
    code: known.code,
    retryable: known.retryable,
    ...(known.mayHaveHappened && { mayHaveHappened: true as const }),
    ...(known.retryAfterMs !== undefined && { retryAfterMs: known.retryAfterMs }),
  };
}

/** A fault that ends the process: a wrong setting, a name that is taken. `serve` prints its message as one line. */
export class FatalError extends Error {
  override readonly name = 'FatalError';
}
