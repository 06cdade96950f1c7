import { randomBytes } from 'node:crypto';
import type { Socket } from 'socket.io';
import type { Admission, Admitted, Authenticator, DeviceSessions, Holder, Identity } from '../../admission/index.js';
import { RelayError } from '../../core/errors.js';
import { sleep } from '../../core/sleep.js';
import { addressOf } from './address.js';
import { type ClientAuth, checkClientType } from './client-auth.js';
import { Refusal } from './refusal.js';
import type { Slots } from './slots.js';
import { closedSignal } from './socket-internals.js';

export interface EntranceOptions {
  readonly authenticator: Authenticator;
  readonly admission: Admission;
  readonly devices: DeviceSessions;
  /** `off`: a device may have any number of connections. */
  readonly singleSession: string;
  readonly trustProxy: number | undefined;
  readonly processId: string;
}

/** Why somebody who was let in must go. */
export interface Ending {
  readonly code: 'tenant_inactive' | 'unauthorized' | 'session_replaced';
  readonly reason: string;
}

/** One connection on its way through the door and, once it is in, its place in admission and among the device sessions. */
export class Entrance implements Holder {
  readonly id: string;
  /** Set by a verdict or a successor that came before the connection was connected. */
  ending: Ending | undefined;
  /** Ends the connection, once there is somebody to tell. */
  onEnding: ((ending: Ending) => void) | undefined;
  #admitted: Admitted;
  #identity: Identity;
  #holdsDevice = false;
  #hasLeft = false;

  private constructor(
    private readonly socket: Socket,
    identity: Identity,
    private readonly options: EntranceOptions,
  ) {
    this.#identity = identity;
    this.id = `${options.processId}.${randomBytes(9).toString('base64url')}`;
    this.#admitted = this.#register(identity);
  }

  /**
   * Flap limit, token, verdict, throttle, settle, in this order: nobody is known as somebody before its token is proved, or costs
   * an incumbent anything before its verdict. The flap limit is of tokens that prove nothing: many share an address, and who
   * proves himself passes.
   *
   * @throws {RelayError} what is final, or `unavailable`
   * @throws {Refusal} what a client comes back from
   */
  static async open(socket: Socket, auth: ClientAuth, slots: Slots, options: EntranceOptions): Promise<Entrance> {
    const { authenticator, devices, trustProxy } = options;
    const address = addressOf(socket.handshake, trustProxy);
    const claimed = typeof auth.raw.device === 'string' ? auth.raw.device : undefined;
    const [connectMs, flapMs] =
      address === undefined
        ? [0, 0]
        : await Promise.all([devices.connectWait(address), devices.flapWait(address, claimed)]);
    if (connectMs > 0) throw Refusal.throttled('flap', connectMs);
    const identify = () => authenticator.identify(auth.token, closedSignal(socket));
    let identity: Identity;
    try {
      // a slot is for what computes; what Postgres is asked has bounds of its own
      identity = await (authenticator.asksDatabase(auth.token) ? identify() : slots.run(identify));
    } catch (error) {
      if (!(error instanceof RelayError) || error.code !== 'unauthorized') throw error;
      if (flapMs > 0) throw Refusal.throttled('flap', flapMs);
      devices.noteRefusal(address, claimed);
      throw error;
    }
    checkClientType(auth);
    const entrance = new Entrance(socket, identity, options);
    try {
      await entrance.#pass();
      return entrance;
    } catch (error) {
      entrance.leave();
      throw error;
    }
  }

  get identity(): Identity {
    return this.#identity;
  }

  #register(identity: Identity): Admitted {
    return this.options.admission.enter(identity, ({ code, reason }) => this.#end({ code, reason }));
  }

  async #pass(): Promise<void> {
    const { admission, devices, singleSession } = this.options;
    const { tenant, user, device } = this.#identity;
    const closed = closedSignal(this.socket);
    const isPaired = await admission.check(this.#admitted, closed);
    if (singleSession === 'off' || device === undefined || closed.aborted) return;
    this.#holdsDevice = true;
    const decision = await devices.decide({ tenant, user, device }, this, { isPaired });
    if (decision.is === 'refused') throw Refusal.throttled(decision.reason, decision.retryAfterMs);
  }

  /**
   * Goes on under a new token of the same person.
   *
   * @throws {RelayError} the new one is not good enough; the old one stays
   */
  async renew(identity: Identity): Promise<void> {
    const { admission } = this.options;
    const next = this.#register(identity);
    try {
      await admission.check(next, closedSignal(this.socket));
    } catch (error) {
      admission.leave(next);
      throw error;
    }
    // its connection may have gone meanwhile, and with it what it had here
    admission.leave(this.#hasLeft ? next : this.#admitted);
    if (this.#hasLeft) return;
    this.#admitted = next;
    this.#identity = identity;
  }

  /** For a publish; see {@link Admission.fence}. */
  fence(): Promise<void> | undefined {
    return this.options.admission.fence(this.#admitted);
  }

  /** The connection is gone, or never came to be. Idempotent. */
  leave(): void {
    const { admission, devices } = this.options;
    this.#hasLeft = true;
    admission.leave(this.#admitted);
    const { tenant, user, device } = this.#identity;
    if (this.#holdsDevice && device !== undefined) devices.leave({ tenant, user, device }, this);
    this.#holdsDevice = false;
  }

  // --- as the holder of its device's session

  /** Anything that comes from its client within that time proves that it lives; an Engine.IO ping asks for something. */
  async isAlive(withinMs: number): Promise<boolean> {
    const { conn } = this.socket;
    if (conn.readyState !== 'open') return false;
    const heard = new AbortController();
    const hear = (): void => heard.abort();
    conn.once('packet', hear);
    (conn as unknown as { sendPacket(type: string): void }).sendPacket('ping');
    await sleep(withinMs, heard.signal);
    conn.off('packet', hear);
    return heard.signal.aborted && conn.readyState === 'open';
  }

  evict(): void {
    this.#end({ code: 'session_replaced', reason: "another connection took this device's session over" });
  }

  #end(ending: Ending): void {
    if (this.ending) return;
    this.ending = ending;
    this.onEnding?.(ending);
  }
}
