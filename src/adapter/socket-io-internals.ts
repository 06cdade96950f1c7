import type { Namespace, Socket } from 'socket.io';
import type { Adapter, BroadcastOptions } from 'socket.io-adapter';
import { stringify } from './codec.js';

export interface Packet {
  readonly type: number;
  readonly id?: number;
  readonly data: unknown[];
}

/** Private parts of Socket.IO that an adapter can't do without; a contract test looks for each of them. */
interface AdapterInternals {
  apply(opts: BroadcastOptions, callback: (socket: Socket) => void): void;
}

export interface NamespaceInternals {
  /** Socket.IO 4.6 to 4.8; where it is missing, a client that comes before the log is open begins where it opens. */
  _createSocket: ((client: unknown, auth: Readonly<Record<string, unknown>>) => Promise<Socket>) | undefined;
  _onServerSideEmit(args: unknown[]): void;
}

interface SocketInternals {
  pid: string;
  packet(packet: Packet, opts?: { volatile?: boolean; compress?: boolean }): void;
  notifyOutgoingListeners(packet: Packet): void;
}

export const adapterInternals = (adapter: Adapter): AdapterInternals => adapter as unknown as AdapterInternals;
export const namespaceInternals = (nsp: Namespace): NamespaceInternals => nsp as unknown as NamespaceInternals;
export const socketInternals = (socket: Socket): SocketInternals => socket as unknown as SocketInternals;

/** A socket as `fetchSockets` shows it to other servers, as text. What can't be written, such as `data` with a circle, is empty. */
export function describeSocket({ id, handshake, rooms, data }: Socket): string {
  // a session store refers to itself
  const { sessionStore: _, ...shown } = handshake as typeof handshake & { sessionStore?: unknown };
  const parts = { id, rooms: [...rooms] };
  try {
    return stringify({ ...parts, handshake: shown, data });
  } catch {
    return stringify({ ...parts, handshake: writable(shown), data: writable(data) });
  }
}

function writable(value: unknown): unknown {
  try {
    stringify(value);
    return value;
  } catch {
    return {};
  }
}
