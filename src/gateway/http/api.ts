import { z } from 'zod';
import type { Admission, ApiCaller, Scope } from '../../admission/index.js';
import { ERROR_CODES, type ErrorCode, RelayError, toWireError } from '../../core/errors.js';
import { isName } from '../../wire/names.js';
import type { GatewayMetrics } from '../metrics.js';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** What a key must have for a route under /v1. */
    scope?: Scope;
  }
}

/** What the routes of the HTTP API share. */
export const name = z.string().refine(isName, 'wants 1 to 200 characters without control characters');

export const failure = z.object({
  error: z.string(),
  code: z.enum(Object.keys(ERROR_CODES) as [ErrorCode, ...ErrorCode[]]),
  retryable: z.boolean(),
  mayHaveHappened: z.boolean().optional(),
  retryAfterMs: z.number().optional(),
});
export const failures = { '4xx': failure, '5xx': failure } as const;

/** What a path names is not there: 404, as a path that is none. */
export class NotFound extends RelayError {
  constructor(message: string) {
    super('bad_request', message);
  }

  override get status(): number {
    return 404;
  }
}

/**
 * A route that names no scope is nobody's.
 *
 * @throws {RelayError} `permission_denied`
 */
export function demandScope({ scopes }: ApiCaller, scope: Scope | undefined): void {
  if (scope !== undefined && scopes.has(scope)) return;
  throw new RelayError('permission_denied', `the key lacks the scope ${scope ?? 'that nobody has'}`);
}

/** @throws {RelayError} `bad_request`, `permission_denied` */
export function tenantOf(caller: ApiCaller, wanted: unknown): string {
  if (wanted !== undefined && !isName(wanted))
    throw new RelayError('bad_request', 'tenant: wants 1 to 200 characters without control characters');
  if (caller.tenant !== undefined && wanted !== undefined && wanted !== caller.tenant)
    throw new RelayError('permission_denied', 'the key is bound to another tenant');
  return caller.tenant ?? wanted ?? 'default';
}

/**
 * As {@link tenantOf}, for who may act in that tenant's name: not if it is known to be inactive.
 *
 * @throws {RelayError} `tenant_inactive` too
 */
export async function actingTenantOf(caller: ApiCaller, wanted: unknown, admission: Admission): Promise<string> {
  const tenant = tenantOf(caller, wanted);
  await admission.passTenant(tenant);
  return tenant;
}

export async function counted<T>(metrics: GatewayMetrics, command: string, work: () => Promise<T>): Promise<T> {
  try {
    const result = await work();
    metrics.commands.inc({ command, code: 'ok' });
    return result;
  } catch (error) {
    metrics.commands.inc({ command, code: toWireError(error).code });
    throw error;
  }
}

/** As JSON, which has no bytes: binary parts are base64 texts. */
export function withTexts(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (ArrayBuffer.isView(value))
    return Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64');
  if (Array.isArray(value)) return value.map(withTexts);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withTexts(item)]));
}
