import { RelayError } from '../core/errors.js';
import { sqlState } from '../postgres/database.js';

/** What the server says of itself, and not of the statement: it can't now, it may not write, it has no room. */
const OF_SERVER = /^(08|25006|28|3D|40|42501|53|55|57|58|XX)/;
/** It may have ended a connection whose statement it had done. */
const OF_CONNECTION = /^(08|57)/;
const OUR_FAULTS = [TypeError, RangeError, ReferenceError, SyntaxError];

/** What a statement failed of, for whoever asked for it. */
export function failureOf(error: unknown, { isChange }: { readonly isChange: boolean }): RelayError {
  if (error instanceof RelayError) return error;
  const state = sqlState(error);
  const isOurs = state === undefined ? OUR_FAULTS.some((kind) => error instanceof kind) : !OF_SERVER.test(state);
  if (isOurs) return new RelayError('internal', undefined, { cause: error });
  return new RelayError('unavailable', 'the database cannot be reached', {
    mayHaveHappened: isChange && (state === undefined || OF_CONNECTION.test(state)),
    cause: error,
  });
}
