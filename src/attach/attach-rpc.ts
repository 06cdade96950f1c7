import type { Namespace, Server, Socket } from 'socket.io';
import { RelayError, toWireError } from '../core/errors.js';
import { type KeptRegistration, RPC_COMMANDS, type RpcParty, RpcSocket, readName, separateAcks } from '../rpc/index.js';
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
  /** Called once for each socket that connects. `undefined`, or a rejection: it may neither call nor serve. */
  readonly identify: (socket: Socket) => RpcIdentity | undefined | Promise<RpcIdentity | undefined>;
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

/** Where a socket's registrations are kept for connection state recovery: adapters carry a socket's data. */
const KEPT = 'holdfastRpc';

/**
 * Puts calls on a Socket.IO server, whatever its adapter: clients send `rpc-call`, `rpc-register` and the others of the relay's
 * protocol. Servers with the same Redis and prefix, relays among them, reach each other's clients.
 *
 * @param io a server, or one of its namespaces
 * @param redis an ioredis or node-redis client: it says where Redis is, and its own connection is not used
 * @throws {TypeError} in one line
 */
export function attachRpc(io: Server | Namespace, redis: unknown, options: AttachRpcOptions): AttachedRpc {
  const { identify } = options;
  if (typeof identify !== 'function') throw new TypeError('attachRpc: identify: wants a function');
  const namespace = 'sockets' in io && 'of' in io ? io.sockets : (io as Namespace);
  const member = new RpcProcess(redis, options, 'attachRpc');
  separateAcks(namespace);
  const sockets = new Set<RpcSocket>();
  const onConnection = (socket: Socket): void => attach(socket, member, identify, sockets);
  namespace.on('connection', onConnection);
  for (const socket of namespace.sockets.values()) onConnection(socket);
  member.start().catch(() => {});
  let closing: Promise<void> | undefined;
  const close = (drainMs = 10_000): Promise<void> => {
    closing ??= (async () => {
      namespace.off('connection', onConnection);
      const until = performance.now() + drainMs;
      await Promise.all([...sockets].map((socket) => socket.retire(until)));
      await member.stop();
    })();
    return closing;
  };
  return { client: clientOf(member, 'default', 'service:attached'), close, [Symbol.asyncDispose]: close };
}

function attach(
  socket: Socket,
  { rpc }: RpcProcess,
  identify: AttachRpcOptions['identify'],
  sockets: Set<RpcSocket>,
): void {
  let hasEnded: boolean | undefined;
  const opening = open();
  // whoever asks hears it
  opening.catch(() => {});
  socket.on('disconnect', (reason) => {
    hasEnded = reason === 'client namespace disconnect' || reason === 'server namespace disconnect';
    void opening.then((party) => end(party, hasEnded === true)).catch(() => {});
  });
  for (const command of RPC_COMMANDS)
    socket.on(command, (...args: unknown[]) => {
      const ack = args.at(-1);
      const reply = typeof ack === 'function' ? (ack as (answer: object) => void) : () => {};
      opening
        .then((party) => party.answer(command, args[0]))
        .then(
          (answer) => reply(answer),
          (error: unknown) => reply({ ok: false, ...toWireError(error), mayHaveRun: false }),
        );
    });

  async function open(): Promise<RpcSocket> {
    let identity: RpcIdentity | undefined;
    try {
      identity = await identify(socket);
    } catch (cause) {
      throw new RelayError('unauthorized', 'this socket may neither call nor serve', { cause });
    }
    if (!identity) throw new RelayError('unauthorized', 'this socket may neither call nor serve');
    const party = partyOf(identity);
    const data = socket.data as { [KEPT]?: readonly KeptRegistration[] };
    const opened: RpcSocket = new RpcSocket({
      socket,
      rpc,
      party: () => party,
      onChange: async () => {
        data[KEPT] = opened.kept;
      },
    });
    sockets.add(opened);
    if (socket.recovered && data[KEPT]) {
      opened.inherit(data[KEPT]);
      opened.takeUp();
    }
    return opened;
  }

  async function end(party: RpcSocket, isFinal: boolean): Promise<void> {
    sockets.delete(party);
    await party.end(isFinal);
  }
}

function partyOf(identity: RpcIdentity): RpcParty {
  const user = readName('user', identity.user);
  const tenant = readName('tenant', identity.tenant ?? 'default');
  return {
    tenant,
    user,
    mayCall: identity.mayCall ?? ((target) => target === user),
    mayRegister: identity.mayRegister ?? (() => true),
  };
}
