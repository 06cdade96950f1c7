import { randomBytes, randomInt, randomUUID } from 'node:crypto';
import type { Namespace, Socket } from 'socket.io';
import { RelayError } from '../core/errors.js';
import { isName } from '../wire/names.js';
import { type CallFields, readCall, readName } from './call-request.js';
import type { Daemon, DaemonAnswer, DaemonRequest, Dedupe } from './daemon.js';
import { failed, failureOf, type Outcome } from './outcome.js';
import type { KeptRegistration } from './registrations.js';
import type { Rpc } from './rpc.js';

/** Calls that one socket waits for. */
const MAX_PENDING = 1000;
/** Methods that one socket serves. */
const MAX_METHODS = 1000;
const MAX_INSTANCE_LENGTH = 100;
const MINUTE_MS = 60_000;
/** Cancels of one socket in a minute that are kept for a call that has not come yet. */
const MAX_CANCELLED = 100;

/** Private parts of Socket.IO's socket: how acks are counted and kept. */
interface AckInternals {
  readonly acks: Map<number, () => void>;
  readonly nsp: { _ids: number };
}

function internalsOf(socket: Socket): AckInternals {
  return socket as unknown as AckInternals;
}

/**
 * Socket.IO counts its acks from 0 in each process, and a stock client sends an ack over whatever connection it has by then: an
 * answer to the pod that died would be taken for one to the pod where its daemon is now. So each process counts from elsewhere.
 */
export function separateAcks(namespace: Namespace): void {
  (namespace as unknown as { _ids: number })._ids = randomInt(2 ** 47);
}

/** Who a socket is, and what it may. */
export interface RpcParty {
  readonly tenant: string;
  readonly user: string;
  mayCall(user: string, method: string): boolean;
  mayRegister(method: string): boolean;
}

export interface RpcSocketOptions {
  readonly socket: Socket;
  readonly rpc: Rpc;
  /** As of now: a token may be renewed. */
  readonly party: () => RpcParty;
  /** The client may resume elsewhere: what it serves is stored before it is told so. */
  readonly onChange?: () => Promise<boolean | void>;
  /** Something was written to the socket. */
  readonly onSent?: () => void;
  /** The client has much to read: it gets nothing more until it has. */
  readonly isLoaded?: () => boolean;
  /** What is written in one turn of the loop leaves together. */
  readonly inOneSegment?: (write: () => void) => void;
}

/** What clients can ask, and how it is answered. */
export type RpcCommand = 'rpc-register' | 'rpc-unregister' | 'rpc-call' | 'rpc-attach' | 'rpc-cancel';
export const RPC_COMMANDS: readonly RpcCommand[] = [
  'rpc-register',
  'rpc-unregister',
  'rpc-call',
  'rpc-attach',
  'rpc-cancel',
];

/** Answer of `rpc-call` and `rpc-attach`. */
type CallAnswer = Outcome;

/** One client as a caller and as a daemon. Its events come in through `answer`; `end` is the end of its connection. */
export class RpcSocket implements Daemon {
  /** Of this connection: a client whose state is recovered keeps its socket id, and is another daemon. */
  readonly id = randomBytes(9).toString('base64url');
  readonly tenant: string;
  readonly user: string;
  /** What it served before it came here, and has not been registered yet. */
  #inherited: readonly KeptRegistration[] = [];
  #pending = 0;
  readonly #methods = new Set<string>();
  /** Number of the ack that is awaited, by request. */
  readonly #acks = new Map<string, number>();
  /** Calls of the present minute that were cancelled before they came. */
  #cancelled = { since: 0, count: 0 };
  /** The last registration or its end, by method: they keep their order. */
  readonly #turns = new Map<string, Promise<void>>();
  #hasEnded = false;

  constructor(private readonly options: RpcSocketOptions) {
    const { tenant, user } = options.party();
    this.tenant = tenant;
    this.user = user;
  }

  /** For a resume record. */
  get kept(): readonly KeptRegistration[] {
    const present = this.options.rpc.kept(this);
    const names = new Set(present.map(([method]) => method));
    return [...present, ...this.#inherited.filter(([method]) => !names.has(method))];
  }

  /** What a resume record says that it served. */
  inherit(registrations: readonly KeptRegistration[]): void {
    this.#inherited = registrations;
  }

  /** Registers what it inherited, where nobody newer has it. Call it in the turn in which the client is told that it is connected. */
  takeUp(): void {
    const inherited = this.#inherited;
    if (inherited.length === 0) return;
    const { mayRegister } = this.options.party();
    const taken = inherited.map(async ([method, dedupe, fence]) => {
      if (this.#methods.has(method)) return;
      if (!mayRegister(method)) return this.#refuse(method);
      this.#methods.add(method);
      // one that is late stays inherited until it is there
      const outcome = await this.options.rpc.register(this, method, dedupe, fence);
      if (outcome === 'registered' || outcome === 'lost') this.#disinherit(method);
    });
    void Promise.all(taken).then(() => this.options.onChange?.());
  }

  onRegistered(method: string): void {
    this.#disinherit(method);
    this.#emit('rpc-registered', { method });
    void this.options.onChange?.();
  }

  #disinherit(method: string): void {
    this.#inherited = this.#inherited.filter(([name]) => name !== method);
  }

  #refuse(method: string): void {
    this.#disinherit(method);
    this.#emit('rpc-unregistered', { method, reason: 'permission_denied' });
  }

  /**
   * The ack's value for a command.
   *
   * @throws {RelayError} for commands other than calls
   */
  async answer(command: RpcCommand, payload: unknown): Promise<object> {
    switch (command) {
      case 'rpc-call':
      case 'rpc-attach':
        return this.#call(command, payload);
      case 'rpc-cancel':
        return this.#cancel(payload);
      case 'rpc-register':
      case 'rpc-unregister':
        return this.#tell(command, () => this.#change(command, payload));
      default:
        return command satisfies never;
    }
  }

  /** The client may do less than before: what it may serve no longer is taken from it. */
  async recheck(): Promise<void> {
    const { rpc, party } = this.options;
    const { mayRegister } = party();
    for (const method of [...this.#methods].filter((name) => !mayRegister(name))) {
      this.#methods.delete(method);
      await rpc.unregister(this, method, this.#inheritedFence(method));
      this.#refuse(method);
    }
  }

  /** As `Rpc.retire`. What it served stays in its record: it goes on elsewhere, and may not register again. */
  async retire(until: number, signal?: AbortSignal): Promise<void> {
    this.#inherited = this.kept;
    await this.options.rpc.retire(this, until, { signal });
  }

  /** The connection is gone. `isFinal`: it left on purpose, and what it serves is gone too. */
  async end(isFinal: boolean): Promise<void> {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    const left = this.options.rpc.leave(this, isFinal);
    for (const id of [...this.#acks.keys()]) this.#dropAck(id);
    await left;
  }

  // --- as a daemon

  get isLoaded(): boolean {
    return this.options.isLoaded?.() ?? false;
  }

  deliver(request: DaemonRequest, leftMs: number, answer: (answer: DaemonAnswer) => void): void {
    const { socket, onSent, inOneSegment = (write) => write() } = this.options;
    if (!socket.connected) return;
    inOneSegment(() => this.#send(request, leftMs, answer));
    onSent?.();
  }

  #send(request: DaemonRequest, leftMs: number, answer: (answer: DaemonAnswer) => void): void {
    const { socket } = this.options;
    this.#acks.set(request.id, internalsOf(socket).nsp._ids);
    socket.timeout(leftMs).emit('rpc-request', request, (error: Error | null, value: unknown) => {
      this.#acks.delete(request.id);
      // it has been given up by then
      if (!error) answer(answerOf(value));
    });
  }

  giveUp(id: string, reason: 'cancelled' | 'timeout'): void {
    this.#dropAck(id);
    this.#emit('rpc-cancelled', { id, reason });
  }

  onReplaced(method: string): void {
    this.#methods.delete(method);
    this.#emit('rpc-unregistered', { method, reason: 'replaced' });
    void this.options.onChange?.();
  }

  /** Nobody waits for it: it would be kept until the deadline. */
  #dropAck(id: string): void {
    const number = this.#acks.get(id);
    if (number === undefined) return;
    this.#acks.delete(id);
    const { acks } = internalsOf(this.options.socket);
    const ack = acks.get(number);
    acks.delete(number);
    // ends its timer
    ack?.();
  }

  #emit(event: string, payload: object): void {
    const { socket, onSent } = this.options;
    if (!socket.connected) return;
    socket.emit(event, payload);
    onSent?.();
  }

  // --- registering

  /** Besides the ack, an event says it: clients exist that wait for that. */
  async #tell(command: 'rpc-register' | 'rpc-unregister', work: () => Promise<string>): Promise<object> {
    try {
      const method = await work();
      this.#emit(`${command}ed`, { method });
      return { ok: true };
    } catch (error) {
      const { code, message } = error instanceof RelayError ? error : new RelayError('internal');
      this.#emit('rpc-error', { type: command.slice(4), error: message, code });
      throw error;
    }
  }

  async #change(command: 'rpc-register' | 'rpc-unregister', payload: unknown): Promise<string> {
    const { method, dedupe } = fieldsOf(payload);
    if (!isName(method)) throw new RelayError('bad_request', 'Invalid method name');
    const turn = (this.#turns.get(method) ?? Promise.resolve()).then(() =>
      command === 'rpc-register' ? this.#register(method, readDedupe(dedupe)) : this.#unregister(method),
    );
    const settled = turn.catch(() => {});
    this.#turns.set(method, settled);
    void settled.then(() => {
      if (this.#turns.get(method) === settled) this.#turns.delete(method);
    });
    await turn;
    return method;
  }

  async #register(method: string, dedupe: Dedupe): Promise<void> {
    const { rpc, party } = this.options;
    if (!party().mayRegister(method))
      throw new RelayError('permission_denied', `registering ${JSON.stringify(method)} is not allowed`);
    if (!this.#methods.has(method) && this.#methods.size >= MAX_METHODS)
      throw new RelayError('bad_request', `method: a socket serves at most ${MAX_METHODS}`);
    if (this.#hasEnded) throw new RelayError('cancelled');
    this.#methods.add(method);
    const outcome = await rpc.register(this, method, dedupe);
    if (outcome === 'retired') throw new RelayError('shutting_down');
    if (outcome === 'lost') throw new RelayError('conflict', 'a newer registration has the method');
    if (outcome === 'late') throw new RelayError('unavailable', 'the method is registered when Redis is back');
    await this.#store();
  }

  /** What it serves must be known wherever it goes on. */
  async #store(): Promise<void> {
    if ((await this.options.onChange?.()) === false && !this.#hasEnded)
      throw new RelayError('unavailable', 'what the client serves could not be stored');
  }

  #inheritedFence(method: string): string | undefined {
    return this.#inherited.find(([name]) => name === method)?.[2];
  }

  async #unregister(method: string): Promise<void> {
    this.#methods.delete(method);
    const inherited = this.#inheritedFence(method);
    this.#disinherit(method);
    await this.options.rpc.unregister(this, method, inherited);
    await this.#store();
  }

  // --- as a caller

  async #call(command: 'rpc-call' | 'rpc-attach', payload: unknown): Promise<CallAnswer> {
    if (this.#pending >= MAX_PENDING) return failed('overloaded', false, `${MAX_PENDING} calls wait for an answer`);
    this.#pending++;
    try {
      return await (command === 'rpc-call' ? this.#make(payload) : this.#attach(payload));
    } catch (error) {
      if (error instanceof RelayError && error.code === 'permission_denied') throw error;
      return failureOf(error);
    } finally {
      this.#pending--;
    }
  }

  #make(payload: unknown): Promise<Outcome> {
    const { rpc, party } = this.options;
    const { tenant, user, mayCall } = party();
    const request = readCall(
      fieldsOf(payload) as CallFields,
      { caller: callerOf(user), tenant, user, ownDaemon: this.id },
      () => `c-${randomUUID()}`,
    );
    if (!mayCall(request.user, request.method))
      throw new RelayError('permission_denied', `calling ${JSON.stringify(request.method)} is not allowed`);
    return rpc.call(request);
  }

  #attach(payload: unknown): Promise<Outcome> {
    return this.options.rpc.attach(this.#name(payload));
  }

  async #cancel(payload: unknown): Promise<object> {
    const now = performance.now();
    if (now - this.#cancelled.since > MINUTE_MS) this.#cancelled = { since: now, count: 0 };
    const isForFuture = ++this.#cancelled.count <= MAX_CANCELLED;
    if (await this.options.rpc.cancel(this.#name(payload), isForFuture)) return { ok: true };
    throw new RelayError('unavailable', 'the call could not be cancelled', { mayHaveHappened: true });
  }

  /** Only calls of its own can be named: they are the caller's, whatever it may call today. */
  #name(payload: unknown): Parameters<Rpc['attach']>[0] {
    const { id, user } = fieldsOf(payload);
    const party = this.options.party();
    return {
      caller: callerOf(party.user),
      tenant: party.tenant,
      user: user === undefined ? party.user : readName('user', user),
      id: readName('id', id),
    };
  }
}

function callerOf(user: string): string {
  return `user:${user}`;
}

/** What the SDK makes of a handler that failed; everything else is a result, whatever it looks like. */
function answerOf(value: unknown): DaemonAnswer {
  const isFailure = typeof value === 'object' && value !== null && (value as { rpcError?: unknown }).rpcError === true;
  if (!isFailure) return { ok: true, result: value };
  const { error } = value as { error?: unknown };
  return { ok: false, error: typeof error === 'string' ? error : 'the handler failed' };
}

function readDedupe(dedupe: unknown): Dedupe {
  if (dedupe === undefined || dedupe === null || dedupe === false) return false;
  if (dedupe === true) return true;
  if (isName(dedupe) && dedupe.length <= MAX_INSTANCE_LENGTH) return dedupe;
  throw new RelayError(
    'bad_request',
    `dedupe: wants true, or an instance id of at most ${MAX_INSTANCE_LENGTH} characters`,
  );
}

/** The payload's own fields; no name leads to a prototype. */
function fieldsOf(payload: unknown): Readonly<Record<string, unknown>> {
  if (typeof payload !== 'object' || payload === null || Array.isArray(payload) || ArrayBuffer.isView(payload))
    throw new RelayError('bad_request', 'wants an object');
  return Object.assign(Object.create(null), payload) as Record<string, unknown>;
}
