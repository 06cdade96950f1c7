import { ERROR_CODES, type ErrorCode, RelayError } from '../core/errors.js';
import { decodePayload } from './payload.js';

export type FailureCode = Extract<
  ErrorCode,
  | 'no_worker'
  | 'worker_lost'
  | 'handler_error'
  | 'timeout'
  | 'cancelled'
  | 'overloaded'
  | 'unavailable'
  | 'conflict'
  | 'payload_too_large'
  | 'bad_request'
>;

/** What became of a call; each has exactly one. */
export type Outcome = { readonly ok: true; readonly result: unknown } | Failure;

export interface Failure {
  readonly ok: false;
  readonly code: FailureCode;
  readonly error: string;
  readonly retryable: boolean;
  /** The handler may have run, or be running. */
  readonly mayHaveRun: boolean;
}

export function failed(code: FailureCode, mayHaveRun = false, text?: string): Failure {
  return {
    ok: false,
    code,
    error: text ?? textOf(code, mayHaveRun),
    retryable: ERROR_CODES[code].retryable,
    mayHaveRun,
  };
}

function textOf(code: FailureCode, mayHaveRun: boolean): string {
  if (code === 'worker_lost' && !mayHaveRun) return 'RPC target not reachable';
  if (code === 'unavailable') return 'calls cannot be taken now';
  return ERROR_CODES[code].text;
}

/** A failure as it is stored, and carried between processes. */
export interface StoredFailure {
  readonly code: FailureCode;
  readonly mayHaveRun: boolean;
  readonly error?: string;
}

/** From what a script or a message holds. */
export function outcomeOf(isResult: boolean, answer: unknown): Outcome {
  if (isResult) return { ok: true, result: decodePayload(answer) };
  const { code, mayHaveRun, error } = answer as StoredFailure;
  return failed(code, mayHaveRun, error);
}

/** From the JSON that Redis holds; a stock worker of another language may have left what is none. */
export function outcomeOfText(isResult: boolean, text: string): Outcome {
  let answer: unknown;
  try {
    answer = JSON.parse(text);
  } catch {
    answer = text;
  }
  return outcomeOf(isResult, answer);
}

/** A thrown value of a door's own checks as an outcome. */
export function failureOf(error: unknown): Failure {
  if (!(error instanceof RelayError)) throw error;
  return failed(error.code as FailureCode, false, error.message);
}
