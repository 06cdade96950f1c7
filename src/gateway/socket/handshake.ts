import { randomBytes } from 'node:crypto';
import type { Socket } from 'socket.io';
import { type Identity, isAllowed } from '../../admission/index.js';
import { fullJitter } from '../../core/backoff.js';
import { RelayError, toWireError } from '../../core/errors.js';
import type { Logger } from '../../core/ports.js';
import { sleep, within } from '../../core/sleep.js';
import type { EventLog } from '../../log/index.js';
import type { Inbox } from '../../pods/index.js';
import type { Presence } from '../../presence/index.js';
import { scoped } from '../../wire/names.js';
import type { Ephemeral } from '../ephemeral.js';
import type { Hub } from '../hub.js';
import type { Locator, Place } from '../locator.js';
import type { GatewayMetrics } from '../metrics.js';
import { Outbox } from '../outbox.js';
import type * as records from '../resume-records.js';
import type { ResumeRecords } from '../resume-records.js';
import { Subscriber } from '../subscriber.js';
import { type ClientAuth, takeAuth } from './client-auth.js';
import { Entrance, type EntranceOptions } from './entrance.js';
import { type HoldSlots, Refusal } from './refusal.js';
import { type ResumeState, Session, type SessionContext } from './session.js';
import { Slots } from './slots.js';
import { closedSignal, introduce, rename } from './socket-internals.js';

/** A returning client is held that long while Redis can't answer: between 5 and 10 s, so that they don't come back together. */
const HOLD_MS = 5000;
const REDIS_MS = 1000;
/** A connect waits so long for it to be known that the client is online. */
const PRESENCE_MS = 500;
/** Connections of one pid that come at the same instant take its record from each other so often, and then one gives up. */
const MAX_CLAIMS = 3;
/** Longer than a process takes to renew its lease. */
const LEASE_RENEWED_MS = 700;

export interface HandshakeOptions extends EntranceOptions {
  readonly log: EventLog;
  readonly hub: Hub;
  readonly locator: Locator;
  readonly ephemeral: Ephemeral;
  readonly presence: Presence;
  readonly records: ResumeRecords<ResumeState>;
  readonly inbox: Inbox;
  readonly metrics: GatewayMetrics;
  readonly logger: Logger;
  readonly context: SessionContext;
  readonly sessions: Map<string, Session>;
  readonly handshakes: number;
  readonly held: HoldSlots;
  readonly recoveryWindowMs: number;
}

type FoundRecord = records.FoundRecord<ResumeState>;
type Found = FoundRecord | 'none' | 'orphaned' | 'unknown';

/**
 * From a client's `auth` to a session: authenticate, find what it may resume, store its record, and only then let Socket.IO
 * write CONNECT. Nothing that was missed is written before all of that.
 */
export class Handshake {
  readonly #slots: Slots;

  constructor(private readonly options: HandshakeOptions) {
    this.#slots = new Slots(options.handshakes);
  }

  /**
   * For a Socket.IO middleware. `undefined`: the connection is gone, or was closed for the client to come back.
   *
   * @throws {RelayError} a final refusal
   * @throws {Refusal} one that the client comes back from
   */
  async admit(socket: Socket): Promise<Session | undefined> {
    const auth = takeAuth(socket);
    let entrance: Entrance | undefined;
    let session: Session | undefined;
    try {
      entrance = await Entrance.open(socket, auth, this.#slots, this.options);
      session = await this.#resume(socket, auth, entrance);
      return session;
    } catch (error) {
      const refusal = error instanceof RelayError && error.code === 'unavailable' ? Refusal.unavailable(error) : error;
      if (refusal instanceof Refusal) refusal.prepare(socket, auth.pid);
      throw refusal;
    } finally {
      if (!session) entrance?.leave();
    }
  }

  /** What its client may resume, and from there on. */
  async #resume(socket: Socket, auth: ClientAuth, entrance: Entrance): Promise<Session | undefined> {
    let found: FoundRecord | undefined;
    if (auth.pid !== undefined && this.options.recoveryWindowMs > 0) {
      const pid = auth.pid;
      let answer: Found | 'closed' = await this.#slots.run(() => this.#find(pid));
      if (answer === 'unknown') answer = await this.#hold(socket, pid);
      if (answer === 'orphaned') answer = await this.#findAgain(pid);
      if (answer === 'closed') return undefined;
      found = typeof answer === 'string' ? undefined : answer;
    }
    return this.#slots.run(() => this.#openUndisputed(socket, auth, entrance, found));
  }

  /**
   * Another connection may take the record over meanwhile: mostly one of the same client, which cut this one or is cut itself
   * and not yet known to be. So the record is asked for again; who loses it again and again starts afresh.
   */
  async #openUndisputed(
    socket: Socket,
    auth: ClientAuth,
    entrance: Entrance,
    found: FoundRecord | undefined,
  ): Promise<Session | undefined> {
    let record = found;
    for (let tries = 1; socket.conn.readyState === 'open'; tries++) {
      const isLast = tries > MAX_CLAIMS;
      const claims = isLast ? { ...auth, pid: undefined, told: undefined, position: undefined } : auth;
      const session = await this.#open(socket, claims, entrance, isLast ? undefined : record);
      if (session && !(await this.#settle(session)).isSuperseded) return session;
      if (session) {
        this.discard(session);
        rename(socket, randomBytes(15).toString('base64url'));
      }
      let again = await this.#find(auth.pid as string);
      if (again === 'orphaned') again = await this.#findAgain(auth.pid as string);
      if (again === 'unknown') throw new RelayError('unavailable');
      record = typeof again === 'string' ? undefined : again;
    }
    return undefined;
  }

  /** Gives up what was made for a connection that never was connected. */
  discard(session: Session): void {
    const { hub, ephemeral, sessions } = this.options;
    sessions.delete(session.owner);
    session.visit?.leave(false);
    hub.remove(session.subscriber);
    for (const room of session.subscriber.joins.keys()) ephemeral.leave(room);
  }

  /** The last look before CONNECT is written: the log may have begun a new epoch while the place was found in the old one. */
  async #settle(session: Session): Promise<Session> {
    const { hub } = this.options;
    const { subscriber, socket } = session;
    while (!session.isSuperseded && subscriber.epoch !== hub.dispatched(subscriber.partition).epoch) {
      const gap = hub.carryOver(subscriber);
      session.gap ??= gap;
      if (session.gap) {
        session.pid = newPid();
        introduce(socket, session.pid, false);
      }
      await session.save();
    }
    return session;
  }

  // --- the record that a client brings

  async #find(pid: string): Promise<Found> {
    try {
      const found = await within(
        REDIS_MS,
        this.options.records.find(pid).then((record) => record ?? 'none'),
      );
      return found ?? 'unknown';
    } catch {
      return 'unknown';
    }
  }

  /** Its owner is not known to live, nor to have died: a lease may be renewed in a moment. */
  async #findAgain(pid: string): Promise<Found> {
    await sleep(LEASE_RENEWED_MS);
    return this.#find(pid);
  }

  /** Redis can't say: the client waits, or comes back with what it has. A fresh start would lose what it missed. */
  async #hold(socket: Socket, pid: string): Promise<FoundRecord | 'none' | 'orphaned' | 'closed'> {
    const { metrics, held } = this.options;
    const deadline = performance.now() + HOLD_MS + fullJitter(0, HOLD_MS, HOLD_MS);
    metrics.held.inc();
    if (held.take()) {
      try {
        const closed = closedSignal(socket);
        while (performance.now() < deadline && !closed.aborted) {
          await sleep(100 + Math.random() * 200, closed);
          const answer = await this.#find(pid);
          if (answer !== 'unknown') return answer;
        }
      } finally {
        held.free();
      }
    }
    socket.conn.close(true);
    return 'closed';
  }

  // --- the session

  /** `undefined`: the record that was found is another connection's by now. */
  async #open(
    socket: Socket,
    auth: ClientAuth,
    entrance: Entrance,
    found: FoundRecord | undefined,
  ): Promise<Session | undefined> {
    const { identity } = entrance;
    const { log, records, ephemeral, presence, logger, recoveryWindowMs } = this.options;
    const partition = log.partitionOf(identity.tenant);
    const owner = records.newOwner();
    const record = found && isSamePerson(found, identity) ? found : undefined;
    const place = await this.#place(auth, record, partition);
    // what is missing makes it another session; the old record stays for a client that never hears of the new one
    const lifeMs = place?.gap ? recoveryWindowMs : undefined;
    const isClaimed =
      record !== undefined && place !== undefined && (await this.#claim(auth.pid as string, record, owner, lifeMs));
    if (record && place && !isClaimed) return undefined;
    const isRecovered = isClaimed && place.gap === undefined;
    const pid = isRecovered ? (auth.pid as string) : newPid();
    const start: Place = place ?? this.options.hub.newest(partition);
    const { epoch, ms, offset } = start;
    const subscriber = new Subscriber(new Outbox(socket), { partition, epoch, ms, offset });
    if (isRecovered) rename(socket, record.state.sid);
    introduce(socket, pid, isRecovered);

    const session = new Session(socket, subscriber, pid, owner, entrance, this.options.context);
    session.gap = start.gap;
    // its rooms may not be its former ones, and what it serves is
    if (isClaimed) session.rpc.inherit(record.state.methods ?? []);
    if (isClaimed)
      for (const [room, joined] of record.state.rooms) {
        if (mayStayIn(identity, room)) subscriber.join(room, joinedAt(record, start, joined));
      }
    // a record says also which of the token's own rooms were left
    if (!isClaimed) for (const room of identity.rooms) subscriber.join(scoped(identity.tenant, room), offset);
    this.options.sessions.set(owner, session);
    session.visit = presence.enter(identity, socket.id);
    const [isSaved] = await Promise.all([
      session.save(),
      // in the same round trip: whoever hears that the client is connected finds it, on every pod
      within(PRESENCE_MS, session.visit.whenTried),
      ...[...subscriber.joins.keys()].map((room) => ephemeral.join(room)),
    ]);
    if (!isSaved && !session.isSuperseded)
      logger.debug({ event: 'record_late' }, 'a resume record follows when Redis can take it');
    return session;
  }

  /** Where the client says that it stands, as far as that is known; `undefined`: it starts now. */
  async #place(auth: ClientAuth, record: FoundRecord | undefined, partition: number): Promise<Place | undefined> {
    const { locator } = this.options;
    if (auth.told === 'foreign') return undefined;
    const position = auth.told ?? record?.state ?? auth.position;
    if (!position) return undefined;
    try {
      return await locator.locate(position, partition);
    } catch (error) {
      // one that may have a record comes back for it
      if (auth.pid !== undefined) throw error;
      return locator.guess(position, partition);
    }
  }

  /** Takes the record over and ends its connection, wherever that is. */
  async #claim(pid: string, { owner: from }: FoundRecord, owner: string, lifeMs?: number): Promise<boolean> {
    const { records, inbox, processId, sessions } = this.options;
    const isOurs = await within(REDIS_MS, records.claim(pid, from, owner, lifeMs)).catch((error: unknown) => {
      throw new RelayError('unavailable', undefined, { cause: error });
    });
    if (isOurs === undefined) throw new RelayError('unavailable');
    if (!isOurs) return false;
    const process = records.processOf(from);
    if (process === processId) sessions.get(from)?.supersede();
    else inbox.send(process, { type: 'superseded', owner: from }).catch(() => false);
    return true;
  }
}

function isSamePerson({ state }: FoundRecord, identity: Identity): boolean {
  return state.tenant === identity.tenant && state.user === identity.user && state.device === identity.device;
}

/** A room of the record that the new token allows as well. */
export function mayStayIn(identity: Identity, scopedRoom: string): boolean {
  const [, room] = scopedRoom.split('/');
  const name = decodeURIComponent(room ?? '');
  return identity.rooms.includes(name) || isAllowed(identity.permissions.subscribe, name);
}

/** A join of an older epoch that stands behind what survived happened before all that the new epoch brings. */
function joinedAt({ state }: FoundRecord, start: Place, joined: number): number {
  return (state.roomsEpoch ?? state.epoch) === start.epoch ? joined : Math.min(joined, start.offset);
}

function newPid(): string {
  return randomBytes(18).toString('base64url');
}

/** A refusal as Socket.IO's middleware hands it to the client: CONNECT_ERROR with the code in `data`. */
export function toConnectError(error: unknown): Error {
  const wire = toWireError(error);
  return Object.assign(new Error(wire.error), { data: { code: wire.code, retryable: wire.retryable } });
}
