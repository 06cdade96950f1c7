import type { Socket } from 'socket.io';
import { RelayError } from '../../core/errors.js';
import { type Position, parsePosition } from '../../wire/position.js';

const CLIENT_TYPES = new Set(['user-scoped', 'session-scoped', 'machine-scoped']);

/** What a client brings, as far as it has the right form. */
export interface ClientAuth {
  readonly token: unknown;
  readonly pid: string | undefined;
  /** Socket.IO's own offset: the last text that came last in an event, which need not be one of our positions. */
  readonly told: Position | 'foreign' | undefined;
  readonly position: Position | undefined;
  readonly raw: Readonly<Record<string, unknown>>;
}

/** Reads `auth` and takes the secrets out of it: the handshake is shown to others, and they are as good as a password. */
export function takeAuth(socket: Socket): ClientAuth {
  const raw = socket.handshake.auth as Record<string, unknown>;
  const isObject = typeof raw === 'object' && raw !== null && !Array.isArray(raw);
  const own = (key: string): unknown => (isObject && Object.hasOwn(raw, key) ? raw[key] : undefined);
  const [token, pid, offset, position] = [own('token'), own('pid'), own('offset'), own('position')];
  const rest = isObject ? { ...raw } : {};
  delete rest.token;
  delete rest.pid;
  delete rest.offset;
  delete rest.position;
  (socket.handshake as { auth: object }).auth = rest;
  return {
    token,
    pid: typeof pid === 'string' && /^[\w-]{8,64}$/.test(pid) ? pid : undefined,
    told: offset === undefined ? undefined : (parsePosition(offset) ?? 'foreign'),
    position: parsePosition(position),
    raw: rest,
  };
}

/** @throws {RelayError} `bad_request` */
export function checkClientType({ raw }: ClientAuth): void {
  const { clientType } = raw;
  if (clientType === undefined) return;
  if (typeof clientType !== 'string' || !CLIENT_TYPES.has(clientType))
    throw new RelayError('bad_request', 'clientType: wants user-scoped, session-scoped or machine-scoped');
  if (clientType === 'session-scoped' && !raw.sessionId)
    throw new RelayError('bad_request', 'Session ID required for session-scoped clients');
  if (clientType === 'machine-scoped' && !raw.machineId)
    throw new RelayError('bad_request', 'Machine ID required for machine-scoped clients');
}
