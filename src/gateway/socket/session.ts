import type { Socket } from 'socket.io';
import { type Identity, isAllowed } from '../../admission/index.js';
import type { LogGap } from '../../log/index.js';
import type { Visit } from '../../presence/index.js';
import { type KeptRegistration, type Rpc, RpcSocket } from '../../rpc/index.js';
import { scoped } from '../../wire/names.js';
import type { Hub } from '../hub.js';
import { Resumable, type ResumableContext, type ResumePlace } from '../resumable.js';
import type { Subscriber } from '../subscriber.js';
import type { Entrance } from './entrance.js';
import { RateLimit } from './rate-limit.js';

const MAX_TIMER_MS = 2 ** 31 - 1;
/** What a client needs to go on elsewhere. About 0.3 kB in Redis. */
export interface ResumeState extends ResumePlace {
  readonly tenant: string;
  readonly user: string;
  readonly device: string | undefined;
  /** Rooms, scoped by tenant, each with the offset at which it was joined. */
  readonly rooms: readonly (readonly [string, number])[];
  /** What it serves, if anything. */
  readonly methods?: readonly KeptRegistration[];
}

export interface SessionContext extends ResumableContext<ResumeState> {
  readonly hub: Hub;
  readonly messagesPerSecond: number;
  readonly publishesPerSecond: number;
  readonly rpc: Rpc;
  readonly rpcMaxPayloadBytes: number;
}

/** One connected client: its identity, its resume record and its limits. */
export class Session extends Resumable<ResumeState> {
  readonly messages: RateLimit;
  readonly publishes: RateLimit;
  /** The client as a caller and as a daemon. */
  readonly rpc: RpcSocket;
  /** Among those who are online. */
  visit: Visit | undefined;
  /** A room that an unsubscribe is about to leave. */
  leaving: string | undefined;
  /** What is gone of that which the client had not seen when it came; it is told so when it is connected. */
  gap: LogGap | undefined;
  #expiry: NodeJS.Timeout | undefined;
  #commands: Promise<void> = Promise.resolve();
  #waitingSize = 0;

  constructor(
    readonly socket: Socket,
    subscriber: Subscriber,
    pid: string,
    owner: string,
    readonly entrance: Entrance,
    private readonly context: SessionContext,
  ) {
    super(subscriber, pid, owner, context);
    const now = performance.now();
    this.messages = new RateLimit(context.messagesPerSecond, now);
    this.publishes = new RateLimit(context.publishesPerSecond, now);
    this.rpc = new RpcSocket({
      socket,
      rpc: context.rpc,
      party: () => ({
        tenant: this.identity.tenant,
        user: this.identity.user,
        mayCall: (user, method) => isAllowed(this.identity.permissions.call, scoped(user, method)),
        mayRegister: (method) => isAllowed(this.identity.permissions.register, scoped(this.identity.user, method)),
      }),
      onChange: () => this.save(),
      inOneSegment: (write) => subscriber.outbox.inOneSegment(write),
      isLoaded: () => subscriber.isLoaded,
      onSent: () => {
        if (subscriber.leavesTooMuch) subscriber.closeAsSlow(context.metrics, 'requests are not read');
      },
    });
  }

  get identity(): Identity {
    return this.entrance.identity;
  }

  scopedRoom(room: string): string {
    return scoped(this.identity.tenant, room);
  }

  /** Commands of one socket run one after another, so that a subscribe and its unsubscribe keep their order. */
  inTurn(size: number, work: () => Promise<void>): void {
    this.#waitingSize += size;
    this.#commands = this.#commands.then(work).finally(() => {
      this.#waitingSize -= size;
    });
  }

  /** Characters of the commands that wait for their turn, and a fixed share for each. */
  get waitingSize(): number {
    return this.#waitingSize;
  }

  // --- resume record

  state(): ResumeState {
    const { subscriber, identity, socket } = this;
    const methods = this.rpc.kept;
    return {
      tenant: identity.tenant,
      user: identity.user,
      device: identity.device,
      ...this.placeOf(socket),
      rooms: [...subscriber.joins].filter(([room]) => room !== this.leaving),
      ...(methods.length > 0 && { methods }),
    };
  }

  protected onSuperseded(): void {
    // one that is still on its way in starts afresh
    if (!this.socket.connected) return;
    this.subscriber.endCode = 'replaced';
    this.subscriber.outbox.cut();
  }

  /** The connection is gone. `isFinal`: its client left on purpose and won't resume. */
  async end(isFinal: boolean): Promise<void> {
    clearTimeout(this.#expiry);
    this.entrance.leave();
    const released = Promise.all([this.release(isFinal), this.rpc.end(isFinal)]);
    this.context.hub.remove(this.subscriber);
    await released;
  }

  // --- token

  /** Closes the transport when the token ends: a client that has a new one resumes, one that hasn't is refused at connect. */
  watchExpiry(): void {
    clearTimeout(this.#expiry);
    if (this.hasEnded) return;
    const left = this.identity.expiresAt - Date.now();
    this.#expiry = setTimeout(
      () => {
        if (this.identity.expiresAt - Date.now() > 0) return this.watchExpiry();
        this.subscriber.close('expired', { code: 'token_expired', reason: 'the token has expired', reconnect: true });
      },
      Math.min(Math.max(left, 0), MAX_TIMER_MS),
    );
    this.#expiry.unref();
  }
}
