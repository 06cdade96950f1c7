import { randomBytes } from 'node:crypto';
import type { Socket } from 'socket.io';
import { type Identity, isAllowed, type TokenVerifier } from '../../admission/index.js';
import { fullJitter } from '../../core/backoff.js';
import { RelayError, toWireError } from '../../core/errors.js';
import type { Logger } from '../../core/ports.js';
import { sleep, within } from '../../core/sleep.js';
import type { EventLog, LogGap } from '../../log/index.js';
import type { Inbox } from '../../pods/index.js';
import { scoped } from '../../wire/names.js';
import { type Position, parsePosition } from '../../wire/position.js';
import type { Ephemeral } from '../ephemeral.js';
import type { Hub } from '../hub.js';
import type { GatewayMetrics } from '../metrics.js';
import { Outbox } from '../outbox.js';
import type { FoundRecord, ResumeRecords } from '../resume-records.js';
import { Subscriber } from '../subscriber.js';
import { Session, type SessionContext } from './session.js';
import { Slots } from './slots.js';

/** A returning client is held that long while Redis can't answer: between 5 and 10 s, so that they don't come back together. */
const HOLD_MS = 5000;
const REDIS_MS = 1000;
const CLIENT_TYPES = new Set(['user-scoped', 'session-scoped', 'machine-scoped']);

export interface HandshakeOptions {
  readonly verifier: TokenVerifier;
  readonly log: EventLog;
  readonly hub: Hub;
  readonly ephemeral: Ephemeral;
  readonly records: ResumeRecords;
  readonly inbox: Inbox;
  readonly processId: string;
  readonly metrics: GatewayMetrics;
  readonly logger: Logger;
  readonly context: SessionContext;
  readonly sessions: Map<string, Session>;
  readonly handshakes: number;
  readonly heldHandshakes: number;
  readonly recoveryWindowMs: number;
}

/** Where a connection begins to read, and what its client must be told of what is missing. */
interface Place {
  readonly epoch: string;
  readonly ms: number;
  readonly offset: number;
  readonly gap?: LogGap;
}

/** Private parts of Socket.IO's socket that recovery needs: it sets them itself only in a restore before the middlewares. */
interface SocketInternals {
  id: string;
  pid: string;
  recovered: boolean;
  nsp: { _preConnectSockets: Map<string, Socket> };
}

/**
 * From a client's `auth` to a session: authenticate, find what it may resume, store its record, and only then let Socket.IO
 * write CONNECT. Nothing that was missed is written before all of that.
 */
export class Handshake {
  readonly #slots: Slots;
  #held = 0;
  /** By owner: those between claim and connect, so that an eviction finds them too. */
  readonly gaps = new WeakMap<Session, LogGap>();

  constructor(private readonly options: HandshakeOptions) {
    this.#slots = new Slots(options.handshakes);
  }

  /** As a Socket.IO middleware. */
  async admit(socket: Socket): Promise<Session | undefined> {
    const auth = takeAuth(socket);
    const identity = await this.#slots.run(() => this.options.verifier.identify(auth.token));
    checkClientType(auth);
    let found: FoundRecord | undefined;
    if (auth.pid !== undefined && this.options.recoveryWindowMs > 0) {
      const answer = await this.#slots.run(() => this.#find(auth.pid as string));
      const record = answer === 'unknown' ? await this.#hold(socket, auth.pid) : answer;
      if (record === 'closed') return undefined;
      found = record === 'none' ? undefined : record;
    }
    return this.#slots.run(() => this.#open(socket, auth, identity, found));
  }

  // --- the record that a client brings

  async #find(pid: string): Promise<FoundRecord | 'none' | 'unknown'> {
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

  /** Redis can't say: the client waits, or comes back with what it has. A fresh start would lose what it missed. */
  async #hold(socket: Socket, pid: string): Promise<FoundRecord | 'none' | 'closed'> {
    const { metrics, heldHandshakes } = this.options;
    const deadline = performance.now() + HOLD_MS + fullJitter(0, HOLD_MS, HOLD_MS);
    metrics.held.inc();
    if (this.#held < heldHandshakes) {
      this.#held++;
      try {
        while (performance.now() < deadline && socket.conn.readyState === 'open') {
          await sleep(100 + Math.random() * 200);
          const answer = await this.#find(pid);
          if (answer !== 'unknown') return answer;
        }
      } finally {
        this.#held--;
      }
    }
    socket.conn.close(true);
    return 'closed';
  }

  // --- the session

  async #open(socket: Socket, auth: ClientAuth, identity: Identity, found: FoundRecord | undefined): Promise<Session> {
    const { log, hub, records, ephemeral, logger } = this.options;
    const partition = log.partitionOf(identity.tenant);
    const owner = records.newOwner();
    const record = found && isSamePerson(found, identity) ? found : undefined;
    const told = auth.offset ?? (record ? { ...record.state } : auth.position);
    const place = told && told.partition === partition ? await this.#locate(told, partition) : undefined;

    const isClaimed =
      record !== undefined && place !== undefined && (await this.#claim(auth.pid as string, record, owner));
    const isRecovered = isClaimed && place.gap === undefined;
    const pid = isRecovered ? (auth.pid as string) : randomBytes(18).toString('base64url');
    const start = place ?? {
      ...hub.dispatched(partition),
      ...hub.joinPosition({ partition, ...hub.dispatched(partition) }),
    };
    const subscriber = new Subscriber(new Outbox(socket), { identity, partition, ...start });
    if (isRecovered) becomeAgain(socket, record.state.sid);
    const internals = socket as unknown as SocketInternals;
    internals.pid = pid;
    internals.recovered = isRecovered;

    const session = new Session(socket, subscriber, pid, owner, this.options.context);
    session.startMs = start.ms;
    session.startOffset = start.offset;
    if (isClaimed)
      for (const [room, joined] of record.state.rooms) {
        if (mayStayIn(identity, room)) subscriber.joins.set(room, joinedAt(record, start.epoch, joined, start.offset));
      }
    for (const room of identity.rooms) {
      const name = scoped(identity.tenant, room);
      if (!subscriber.joins.has(name)) subscriber.joins.set(name, start.offset);
    }
    if (place?.gap) this.gaps.set(session, place.gap);
    this.options.sessions.set(owner, session);
    const [isSaved] = await Promise.all([
      session.save(),
      ...[...subscriber.joins.keys()].map((room) => ephemeral.join(room)),
    ]);
    if (!isSaved && !session.isSuperseded)
      logger.debug({ event: 'record_late' }, 'a resume record follows when Redis can take it');
    return session;
  }

  /** What a position that a client brought means now; `undefined`: it is none of this log's. */
  async #locate(position: Position, partition: number): Promise<Place | undefined> {
    const { log, hub } = this.options;
    const { epoch, ms, offset } = hub.dispatched(partition);
    const here = log.resolve(position);
    if (here.kind === 'invalid') return undefined;
    // another branch of the log may have kept this very entry
    if (here.kind === 'epoch' && (await this.#isInLog(position, partition)))
      return { epoch, ms: position.ms, offset: position.offset };
    if (here.kind === 'epoch') {
      const lost = (at: number) => ({ epoch: position.epoch, ms: position.ms, offset: at });
      const from = Math.min(here.offset + 1, position.offset);
      const gap: LogGap = { partition, reason: 'epoch', from: lost(from), to: lost(position.offset) };
      return { epoch, ms: here.ms, offset: here.offset, gap };
    }
    const ring = hub.ring(partition);
    const known = ring.get(here.offset);
    if (known) return known.entry.ms === here.ms ? { epoch, ms: here.ms, offset: here.offset } : undefined;
    if (here.offset === offset && here.ms === ms) return { epoch, ms, offset };
    return this.#locateInLog(here, partition, epoch);
  }

  async #isInLog({ ms, offset }: Position, partition: number): Promise<boolean> {
    const known = this.options.hub.ring(partition).get(offset);
    if (known) return known.entry.ms === ms;
    if (offset === 0) return false;
    const before = { ms, offset: offset - 1 };
    const page = await within(REDIS_MS, this.options.log.page(partition, before, { entries: 1, bytes: 1 })).catch(
      () => undefined,
    );
    return page?.entries[0]?.offset === offset && page.entries[0].ms === ms;
  }

  async #locateInLog(
    here: { ms: number; offset: number },
    partition: number,
    epoch: string,
  ): Promise<Place | undefined> {
    const before = { ms: here.offset === 0 ? 0 : here.ms, offset: Math.max(0, here.offset - 1) };
    const page = await within(REDIS_MS, this.options.log.page(partition, before, { entries: 1, bytes: 1 })).catch(
      () => undefined,
    );
    // Redis can't say: the position is taken as it is, and what is missing shows as a gap when the log can be read
    if (!page) return { epoch, ms: here.ms, offset: here.offset };
    if (here.offset > page.newest.offset) return undefined;
    if (here.offset + 1 < page.first) {
      const at = (offset: number, ms: number) => ({ epoch, ms, offset });
      const gap: LogGap = {
        partition,
        reason: 'trimmed',
        from: at(here.offset + 1, here.ms),
        to: at(page.first - 1, page.entries[0]?.ms ?? here.ms),
      };
      return { epoch, ms: here.ms, offset: page.first - 1, gap };
    }
    const exists = page.entries[0]?.offset === here.offset || here.offset < page.first;
    return exists ? { epoch, ms: here.ms, offset: here.offset } : undefined;
  }

  /** Takes the record over and ends its connection, wherever that is. */
  async #claim(pid: string, { owner: from }: FoundRecord, owner: string): Promise<boolean> {
    const { records, inbox, processId, sessions } = this.options;
    const isOurs = await within(REDIS_MS, records.claim(pid, from, owner)).catch(() => false);
    if (!isOurs) return false;
    const process = records.processOf(from);
    if (process === processId) sessions.get(from)?.supersede();
    else inbox.send(process, { type: 'superseded', owner: from }).catch(() => false);
    return true;
  }
}

// --- pure parts

interface ClientAuth {
  readonly token: unknown;
  readonly pid: string | undefined;
  /** Socket.IO's own offset, or the client's `position`. */
  readonly offset: Position | undefined;
  readonly position: Position | undefined;
  readonly raw: Readonly<Record<string, unknown>>;
}

/** Reads `auth` and takes the secrets out of it: the handshake is shown to others, and they are as good as a password. */
function takeAuth(socket: Socket): ClientAuth {
  const raw = socket.handshake.auth as Record<string, unknown>;
  const isObject = typeof raw === 'object' && raw !== null && !Array.isArray(raw);
  const own = (key: string): unknown => (isObject && Object.hasOwn(raw, key) ? raw[key] : undefined);
  const [token, pid, offset, position] = [own('token'), own('pid'), own('offset'), own('position')];
  const rest = isObject ? { ...raw } : {};
  delete rest.token;
  delete rest.pid;
  delete rest.offset;
  delete rest.position;
  (socket.handshake as { auth: object }).auth = rest;
  return {
    token,
    pid: typeof pid === 'string' && /^[\w-]{8,64}$/.test(pid) ? pid : undefined,
    offset: parsePosition(offset),
    position: parsePosition(position),
    raw: rest,
  };
}

function checkClientType({ raw }: ClientAuth): void {
  const { clientType } = raw;
  if (clientType === undefined) return;
  if (typeof clientType !== 'string' || !CLIENT_TYPES.has(clientType))
    throw new RelayError('bad_request', 'clientType: wants user-scoped, session-scoped or machine-scoped');
  if (clientType === 'session-scoped' && !raw.sessionId)
    throw new RelayError('bad_request', 'Session ID required for session-scoped clients');
  if (clientType === 'machine-scoped' && !raw.machineId)
    throw new RelayError('bad_request', 'Machine ID required for machine-scoped clients');
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
function joinedAt({ state }: FoundRecord, epoch: string, joined: number, start: number): number {
  return state.epoch === epoch ? joined : Math.min(joined, start);
}

/** The socket gets the id back that its client had. */
function becomeAgain(socket: Socket, sid: string): void {
  const internals = socket as unknown as SocketInternals;
  internals.nsp._preConnectSockets.delete(socket.id);
  internals.id = sid;
  internals.nsp._preConnectSockets.set(sid, socket);
}

/** A refusal as Socket.IO's middleware hands it to the client: CONNECT_ERROR with the code in `data`. */
export function toConnectError(error: unknown): Error {
  const wire = toWireError(error);
  return Object.assign(new Error(wire.error), { data: { code: wire.code, retryable: wire.retryable } });
}
