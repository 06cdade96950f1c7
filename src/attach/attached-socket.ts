import type { Socket } from 'socket.io';
import { RelayError, toWireError } from '../core/errors.js';
import {
  type KeptRegistration,
  RPC_COMMANDS,
  type Rpc,
  type RpcCommand,
  type RpcParty,
  RpcSocket,
  readName,
} from '../rpc/index.js';
import type { AttachRpcOptions, RpcIdentity } from './attach-rpc.js';
import { sizeUpTo } from './payload-size.js';

/** Of one socket that is not known yet; the client is asked to wait with more. */
const MAX_EARLY = 100;
const MAX_EARLY_BYTES = 2_000_000;
const IDENTIFY_MS = 10_000;
/** Commands of one socket that wait for Redis; its calls have a bound of their own. */
const MAX_IN_FLIGHT = 1000;
/** What a socket may still ask of a server that closes. */
const ENDINGS: ReadonlySet<RpcCommand> = new Set(['rpc-cancel', 'rpc-unregister']);
const CALLS: ReadonlySet<RpcCommand> = new Set(['rpc-call', 'rpc-attach']);

/** Where a socket's registrations are kept for connection state recovery: adapters carry a socket's data. */
const KEPT = 'holdfastRpc';

interface Kept {
  readonly tenant: string;
  readonly user: string;
  readonly registrations: readonly KeptRegistration[];
}

/** A socket of somebody's own server, from its connect to its end: whom it speaks for is found out meanwhile. */
export class AttachedSocket {
  readonly #opening: Promise<RpcSocket>;
  readonly #ended = new AbortController();
  #isFinal = false;
  #isOpen = false;
  #isRefused = false;
  #early = 0;
  #earlyBytes = 0;
  #inFlight = 0;

  constructor(
    private readonly socket: Socket,
    private readonly rpc: Rpc,
    private readonly identify: AttachRpcOptions['identify'],
  ) {
    // before anything else runs: a client may say why it leaves at once
    socket.on('disconnect', (reason) => this.#end(reason));
    this.#opening = this.#open();
    // whoever asks hears it
    this.#opening.catch(() => {});
    for (const command of RPC_COMMANDS)
      socket.on(command, (...args: unknown[]) => {
        const ack = args.at(-1);
        const reply = typeof ack === 'function' ? (ack as (answer: object) => void) : () => {};
        this.#answer(command, args[0]).then(reply, (error: unknown) =>
          reply({ ok: false, ...toWireError(error), mayHaveRun: false }),
        );
      });
  }

  /** From now on it is told `shutting_down`. */
  refuse(): void {
    this.#isRefused = true;
  }

  /** As `RpcSocket.retire`; one that is not known yet has nothing. */
  async retire(until: number): Promise<void> {
    if (this.#isOpen) await (await this.#opening).retire(until);
  }

  async #answer(command: RpcCommand, payload: unknown): Promise<object> {
    if (this.#isRefused && !ENDINGS.has(command)) throw new RelayError('shutting_down');
    const party = this.#isOpen ? await this.#opening : await this.#admit(payload);
    if (CALLS.has(command)) return party.answer(command, payload);
    if (this.#inFlight >= MAX_IN_FLIGHT) throw new RelayError('too_many_requests');
    this.#inFlight++;
    try {
      return await party.answer(command, payload);
    } finally {
      this.#inFlight--;
    }
  }

  /** What comes before it is known waits, within bounds. */
  async #admit(payload: unknown): Promise<RpcSocket> {
    const bytes = this.#early < MAX_EARLY ? sizeUpTo(payload, MAX_EARLY_BYTES - this.#earlyBytes) : false;
    if (bytes === false) throw new RelayError('too_many_requests');
    this.#early++;
    this.#earlyBytes += bytes;
    return this.#opening;
  }

  async #open(): Promise<RpcSocket> {
    const identity = await this.#identity();
    if (this.#isRefused) throw new RelayError('shutting_down');
    const party = partyOf(identity);
    const { tenant, user } = party;
    const data = this.socket.data as { [KEPT]?: Kept };
    const opened: RpcSocket = new RpcSocket({
      socket: this.socket,
      rpc: this.rpc,
      party: () => party,
      onChange: async () => {
        data[KEPT] = { tenant, user, registrations: opened.kept };
      },
    });
    this.#isOpen = true;
    const kept = this.socket.recovered ? data[KEPT] : undefined;
    // it may come back as somebody else
    if (kept && kept.tenant === tenant && kept.user === user) {
      opened.inherit(kept.registrations);
      opened.takeUp();
    } else delete data[KEPT];
    return opened;
  }

  /** @throws {RelayError} `unauthorized`, also after too long, or when it has left */
  async #identity(): Promise<RpcIdentity> {
    const { signal } = this.#ended;
    let timer: NodeJS.Timeout | undefined;
    const over = new Promise<undefined>((resolve) => {
      timer = setTimeout(resolve, IDENTIFY_MS, undefined);
      signal.addEventListener('abort', () => resolve(undefined), { once: true });
    });
    let cause: unknown;
    try {
      const asked = (async () => this.identify(this.socket))();
      const identity = await Promise.race([asked, over]);
      if (identity && !signal.aborted) return identity;
    } catch (error) {
      cause = error;
    } finally {
      clearTimeout(timer);
    }
    throw new RelayError('unauthorized', 'this socket may neither call nor serve', { cause });
  }

  #end(reason: string): void {
    this.#isFinal = reason === 'client namespace disconnect' || reason === 'server namespace disconnect';
    this.#ended.abort();
    void this.#opening.then((party) => party.end(this.#isFinal)).catch(() => {});
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
