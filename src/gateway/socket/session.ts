import type { Socket } from 'socket.io';
import type { Identity } from '../../admission/index.js';
import { within } from '../../core/sleep.js';
import type { LogGap } from '../../log/index.js';
import { scoped } from '../../wire/names.js';
import type { Hub } from '../hub.js';
import type { GatewayMetrics } from '../metrics.js';
import type { ResumeRecords, ResumeState } from '../resume-records.js';
import type { Subscriber } from '../subscriber.js';
import { RateLimit } from './rate-limit.js';

const MAX_TIMER_MS = 2 ** 31 - 1;
/** A connect waits so long for its record to be stored. */
const SAVE_MS = 500;

export interface SessionContext {
  readonly hub: Hub;
  readonly records: ResumeRecords;
  readonly metrics: GatewayMetrics;
  readonly messagesPerSecond: number;
  readonly publishesPerSecond: number;
  readonly recoveryWindowMs: number;
}

/** One connected client: its identity, its resume record and its limits. */
export class Session {
  readonly messages: RateLimit;
  readonly publishes: RateLimit;
  /** Another pod, or another connection of this one, has taken the record over: it is no longer ours to touch. */
  isSuperseded = false;
  /** The record doesn't hold what it should: the sweep saves it. */
  isDirty = false;
  savedAt = 0;
  /** A room that an unsubscribe is about to leave. */
  leaving: string | undefined;
  /** What is gone of that which the client had not seen when it came; it is told so when it is connected. */
  gap: LogGap | undefined;
  #expiry: NodeJS.Timeout | undefined;
  #commands: Promise<void> = Promise.resolve();
  #waitingSize = 0;
  #saving: Promise<boolean> | undefined;
  #mustSaveAgain = false;
  #hasEnded = false;
  /** Where it stood when it connected: what a client that heard of no position goes on from, whatever became of its epoch. */
  readonly #start: { readonly epoch: string; readonly ms: number; readonly offset: number };

  constructor(
    readonly socket: Socket,
    readonly subscriber: Subscriber,
    /** Names the record; the client brings it when it returns. */
    public pid: string,
    readonly owner: string,
    public identity: Identity,
    private readonly context: SessionContext,
  ) {
    const { epoch, ms, offset } = subscriber;
    this.#start = { epoch, ms, offset };
    const now = performance.now();
    this.messages = new RateLimit(context.messagesPerSecond, now);
    this.publishes = new RateLimit(context.publishesPerSecond, now);
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

  /** What a client needs to go on elsewhere. */
  state(): ResumeState {
    const { subscriber, identity } = this;
    const { epoch, ms, offset } = this.#start;
    return {
      tenant: identity.tenant,
      user: identity.user,
      device: identity.device,
      sid: this.socket.id,
      epoch,
      partition: subscriber.partition,
      ms,
      offset,
      roomsEpoch: subscriber.epoch,
      rooms: [...subscriber.joins].filter(([room]) => room !== this.leaving),
    };
  }

  /** True once Redis holds the present state. False: it doesn't, within the time that a client waits. */
  async save(withinMs = SAVE_MS): Promise<boolean> {
    if (this.isSuperseded || this.#hasEnded) return false;
    this.isDirty = true;
    this.#mustSaveAgain = true;
    this.#saving ??= this.#saveUntilCurrent();
    return (await within(withinMs, this.#saving)) ?? false;
  }

  async #saveUntilCurrent(): Promise<boolean> {
    const { records, metrics } = this.context;
    try {
      do {
        this.#mustSaveAgain = false;
        if ((await records.save(this.pid, this.owner, this.state())) === 'lost') {
          metrics.records.inc({ outcome: 'lost' });
          this.supersede();
          return false;
        }
      } while (this.#mustSaveAgain && !this.#hasEnded);
      this.isDirty = false;
      this.savedAt = performance.now();
      metrics.records.inc({ outcome: 'saved' });
      return true;
    } catch {
      metrics.records.inc({ outcome: 'failed' });
      return false;
    } finally {
      this.#saving = undefined;
    }
  }

  /** Ends a connection whose client goes on elsewhere; the record is the other's. */
  supersede(): void {
    if (this.isSuperseded) return;
    this.isSuperseded = true;
    // one that is still on its way in starts afresh
    if (!this.socket.connected) return;
    this.subscriber.endCode = 'replaced';
    this.subscriber.outbox.cut();
  }

  /** The connection is gone. `isFinal`: its client left on purpose and won't resume. */
  async end(isFinal: boolean): Promise<void> {
    clearTimeout(this.#expiry);
    this.#hasEnded = true;
    const { records, recoveryWindowMs, hub } = this.context;
    const state = this.state();
    hub.remove(this.subscriber);
    if (this.isSuperseded) return;
    if (isFinal || recoveryWindowMs === 0) await records.drop(this.pid, this.owner).catch(() => {});
    else await records.save(this.pid, this.owner, state, recoveryWindowMs).catch(() => 'lost');
  }

  // --- token

  /** Closes the transport when the token ends: a client that has a new one resumes, one that hasn't is refused at connect. */
  watchExpiry(): void {
    clearTimeout(this.#expiry);
    if (this.#hasEnded) return;
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
