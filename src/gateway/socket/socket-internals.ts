import type { Socket } from 'socket.io';

/** Private parts of Socket.IO's socket that recovery needs: it sets them itself only in a restore before the middlewares. */
interface SocketInternals {
  id: string;
  pid: string;
  recovered: boolean;
  nsp: { _preConnectSockets: Map<string, Socket> };
}

/** Gives a socket that is not connected yet the id that its client had, or a new one. */
export function rename(socket: Socket, id: string): void {
  const internals = socket as unknown as SocketInternals;
  internals.nsp._preConnectSockets.delete(socket.id);
  internals.id = id;
  internals.nsp._preConnectSockets.set(id, socket);
}

/** What CONNECT will say. */
export function introduce(socket: Socket, pid: string, isRecovered: boolean): void {
  const internals = socket as unknown as SocketInternals;
  internals.pid = pid;
  internals.recovered = isRecovered;
}

/** One for each connection: whoever asks on and on adds no listener. */
const CLOSED = new WeakMap<object, AbortSignal>();

/** Aborts when the connection is gone. */
export function closedSignal({ conn }: Socket): AbortSignal {
  const known = CLOSED.get(conn);
  if (known) return known;
  const closed = new AbortController();
  if (conn.readyState === 'open') conn.once('close', () => closed.abort());
  else closed.abort();
  CLOSED.set(conn, closed.signal);
  return closed.signal;
}
