import type { Namespace, Server, Socket } from 'socket.io';
import { separateAcks } from '../rpc/index.js';
import { AttachedSocket } from './attached-socket.js';
import { nameOption } from './name-option.js';
import { clientOf, type RpcClient } from './rpc-client.js';
import { RpcProcess, type RpcProcessOptions } from './rpc-process.js';

/** Whom a socket speaks for. */
export interface RpcIdentity {
  readonly user: string;
  /** Users of different tenants never reach each other. Default `default`. */
  readonly tenant?: string;
  /** Default: its own user's methods. */
  readonly mayCall?: (user: string, method: string) => boolean;
  /** Default: all. */
  readonly mayRegister?: (method: string) => boolean;
}

export interface AttachRpcOptions extends RpcProcessOptions {
  /** Called once for each socket that connects. `undefined`, a rejection, or more than 10 s: it may neither call nor serve. */
  readonly identify: (socket: Socket) => RpcIdentity | undefined | Promise<RpcIdentity | undefined>;
  /** Ids of the calls of `client` are this name's, as in `createRpcClient`. Default `attached`. */
  readonly name?: string;
}

export interface AttachedRpc extends AsyncDisposable {
  /** Calls from this process. */
  readonly client: RpcClient;
  /**
   * Before the process ends: daemons are let go when they have answered, at the latest after `drainMs` (default 10,000); calls that
   * wait here are `unavailable`, and go on for whoever makes them again elsewhere. Close the sockets after it. Idempotent.
   */
  close(drainMs?: number): Promise<void>;
}

/**
 * Puts calls on a Socket.IO server, whatever its adapter: clients send `rpc-call`, `rpc-register` and the others of the relay's
 * protocol. Servers with the same Redis and prefix, relays among them, reach each other's clients.
 *
 * @param io a server, or one of its namespaces
 * @param redis an ioredis or node-redis client: it says where Redis is, and its own connection is not used
 * @throws {TypeError} in one line
 */
export function attachRpc(io: Server | Namespace, redis: unknown, options: AttachRpcOptions): AttachedRpc {
  const { identify, name = 'attached' } = options;
  if (typeof identify !== 'function') throw new TypeError('attachRpc: identify: wants a function');
  nameOption('attachRpc', 'name', name);
  const namespace = 'sockets' in io && 'of' in io ? io.sockets : (io as Namespace);
  // its sockets are its children's, which count their acks themselves
  if ('children' in namespace)
    throw new TypeError(
      'attachRpc: io: wants a server or one namespace (got io.of of a pattern: attach to its namespaces)',
    );
  const member = new RpcProcess(redis, options, 'attachRpc');
  separateAcks(namespace);
  const sockets = new Set<AttachedSocket>();
  let closing: Promise<void> | undefined;
  const onConnection = (socket: Socket): void => {
    const attached = new AttachedSocket(socket, member.rpc, identify);
    if (closing) attached.refuse();
    sockets.add(attached);
    socket.on('disconnect', () => sockets.delete(attached));
  };
  namespace.on('connection', onConnection);
  for (const socket of namespace.sockets.values()) onConnection(socket);
  member.start().catch(() => {});
  const close = (drainMs = 10_000): Promise<void> => {
    closing ??= (async () => {
      const until = performance.now() + drainMs;
      for (const socket of sockets) socket.refuse();
      await Promise.all([...sockets].map((socket) => socket.retire(until)));
      await member.stop();
      namespace.off('connection', onConnection);
    })();
    return closing;
  };
  return { client: clientOf(member, 'default', `service:${name}`), close, [Symbol.asyncDispose]: close };
}
