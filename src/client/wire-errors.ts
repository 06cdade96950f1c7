import { CallError } from '../core/call-error.js';
import { ERROR_CODES, type ErrorCode, RelayError } from '../core/errors.js';

/** A failure as it came: an ack, the data of a CONNECT_ERROR, a `holdfast:closing`. A code that is not known here keeps its text. */
export function fromWire(failure: unknown, text?: string): RelayError {
  const { code, error, retryable, mayHaveHappened, mayHaveRun, retryAfterMs } = (
    typeof failure === 'object' && failure !== null ? failure : {}
  ) as Readonly<Record<string, unknown>>;
  const isKnown = typeof code === 'string' && Object.hasOwn(ERROR_CODES, code);
  const substitute = retryable === true ? 'unavailable' : 'internal';
  const known = isKnown ? (code as ErrorCode) : substitute;
  const message = typeof error === 'string' ? error : text;
  const told = isKnown ? message : `${message ?? ''} (${code})`;
  const wait = typeof retryAfterMs === 'number' ? { retryAfterMs } : {};
  return typeof mayHaveRun === 'boolean'
    ? new CallError(known, told, { mayHaveRun, ...wait })
    : new RelayError(known, told, { mayHaveHappened: mayHaveHappened === true, ...wait });
}
