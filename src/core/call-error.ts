import { type ErrorCode, RelayError } from './errors.js';

/** Why a call has no result. */
export class CallError extends RelayError {
  /** The handler may have begun. `false`: it never will for this call, and calling anew can't run it twice. */
  readonly mayHaveRun: boolean;

  constructor(
    code: ErrorCode,
    message: string | undefined,
    fields: { readonly mayHaveRun: boolean; readonly retryAfterMs?: number; readonly cause?: unknown },
  ) {
    super(code, message, { ...fields, mayHaveHappened: fields.mayHaveRun });
    this.mayHaveRun = fields.mayHaveRun;
  }
}
