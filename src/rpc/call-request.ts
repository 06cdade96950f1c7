import { hash } from 'node:crypto';
import { RelayError } from '../core/errors.js';
import { escapePart, isName } from '../wire/names.js';
import { DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS } from './settings.js';

/** What a caller asks for, checked. */
export interface CallRequest {
  /** Whoever calls: ids of different callers never meet. */
  readonly caller: string;
  readonly tenant: string;
  /** Whose method it is. */
  readonly user: string;
  readonly method: string;
  readonly params: unknown;
  readonly id: string;
  readonly timeoutMs: number;
  /** The longest wait for a worker that is away or absent; by the grace if left out. */
  readonly waitForWorkerMs?: number | undefined;
  /** The handler may run again if its worker died over it. */
  readonly isIdempotent: boolean;
  /** The caller's own daemon, which it may not call. */
  readonly ownDaemon?: string | undefined;
}

/** Names a call at its target. */
export interface CallName {
  readonly caller: string;
  readonly tenant: string;
  readonly user: string;
  readonly id: string;
}

/** A scope, and the call's name in it: a job id that BullMQ takes, whatever text the client chose. */
export function keyOf({ caller, tenant, user, id }: CallName): { readonly scope: string; readonly id: string } {
  return { scope: scopeOf(tenant, user), id: digest(`${caller}\0${id}`) };
}

/** A method as part of a key. */
export const segmentOf = remembered(escapePart);

function scopeOf(tenant: string, user: string): string {
  return `${segmentOf(tenant)}/${segmentOf(user)}`;
}

const MAX_ESCAPED = 10_000;

/** Of names that come again and again. */
function remembered(shape: (name: string) => string): (name: string) => string {
  const known = new Map<string, string>();
  return (name) => {
    let text = known.get(name);
    if (text === undefined) {
      text = shape(name);
      if (known.size >= MAX_ESCAPED) known.clear();
      known.set(name, text);
    }
    return text;
  };
}

export function digest(text: string): string {
  return hash('sha1', text, 'base64url');
}

/** What clients send, as JSON: of a socket, of HTTP. */
export interface CallFields {
  readonly method?: unknown;
  readonly params?: unknown;
  readonly id?: unknown;
  readonly timeoutMs?: unknown;
  readonly waitForWorkerMs?: unknown;
  readonly idempotent?: unknown;
  readonly user?: unknown;
}

/** @throws {RelayError} `bad_request` */
export function readCall(
  fields: CallFields,
  by: { readonly caller: string; readonly tenant: string; readonly user: string; readonly ownDaemon?: string },
  newId: () => string,
): CallRequest {
  const { method, params, id, timeoutMs, waitForWorkerMs, idempotent, user } = fields;
  if (method === undefined || method === null || method === '')
    throw new RelayError('bad_request', 'Invalid parameters: method is required');
  if (!isName(method)) throw new RelayError('bad_request', 'Invalid method name');
  if (idempotent !== undefined && typeof idempotent !== 'boolean')
    throw new RelayError('bad_request', 'idempotent: wants true or false');
  return {
    caller: by.caller,
    tenant: by.tenant,
    ownDaemon: by.ownDaemon,
    user: user === undefined ? by.user : readName('user', user),
    method,
    params,
    id: id === undefined ? newId() : readName('id', id),
    timeoutMs: timeoutMs === undefined ? DEFAULT_TIMEOUT_MS : readMs('timeoutMs', timeoutMs, 1),
    waitForWorkerMs: waitForWorkerMs === undefined ? undefined : readMs('waitForWorkerMs', waitForWorkerMs, 0),
    isIdempotent: idempotent === true,
  };
}

/** @throws {RelayError} `bad_request` */
export function readName(field: string, value: unknown): string {
  if (isName(value)) return value;
  throw new RelayError('bad_request', `${field}: wants 1 to 200 characters without control characters`);
}

function readMs(field: string, value: unknown, min: number): number {
  if (typeof value === 'number' && value >= min && value <= MAX_TIMEOUT_MS) return Math.ceil(value);
  throw new RelayError('bad_request', `${field}: wants ${min} to ${MAX_TIMEOUT_MS} ms`);
}
