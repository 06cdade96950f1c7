import type { Namespace, Socket } from 'socket.io';
import type { Session } from 'socket.io-adapter';
import { RelayError } from '../core/errors.js';
import { sleep, within } from '../core/sleep.js';
import type { Place } from '../gateway/locator.js';
import type { FoundRecord } from '../gateway/resume-records.js';
import type { Subscriber } from '../gateway/subscriber.js';
import { parsePosition } from '../wire/position.js';
import type { AdapterHost } from './host.js';
import type { Room, RoomKeys } from './room-keys.js';
import { AdapterSession, dataOf, type SessionState } from './session.js';
import { socketInternals } from './socket-io-internals.js';

const REDIS_MS = 1000;
/** A returning client is held so long while Redis can't answer. */
const HOLD_MS = 5000;
const MAX_HELD = 2000;
/** Longer than a process takes to renew its lease. */
const LEASE_RENEWED_MS = 700;
/** From the restored session to CONNECT, with the application's middlewares between. */
const CONNECT_MS = 60_000;

/** A session that was restored, and whose socket is on its way. */
interface Resumed {
  readonly owner: string;
  readonly place: Place;
  readonly joins: ReadonlyMap<Room, number>;
}

/**
 * Connection state recovery of one namespace. A record outlives its process, so a client resumes after a SIGKILL as after a cut
 * cable. Nothing that was missed is handed to Socket.IO, which would write it before the middlewares have run: it comes when
 * the socket is connected.
 */
export class Recovery {
  readonly #resumed = new Map<string, Resumed>();
  #held = 0;

  constructor(private readonly host: AdapterHost) {}

  /** What a handshake brings: a client that was cut before it heard of any position resumes from its record. */
  static completed(auth: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
    return typeof auth?.pid === 'string' && auth.offset === undefined ? { ...auth, offset: '' } : auth;
  }

  /** They are as good as a password, and `fetchSockets` shows the handshake to other servers. */
  static hideSecrets(socket: Socket): void {
    const { pid: _pid, offset: _offset, ...rest } = socket.handshake.auth ?? {};
    socket.handshake.auth = rest;
  }

  /**
   * `undefined`: the client starts afresh, and hears `recovered: false`. While Redis can't say, it waits a while: a fresh start
   * would lose what it missed.
   */
  async restore(pid: string, offset: string, partition: number, nsp: Namespace): Promise<Session | undefined> {
    const { metrics } = this.host;
    const end = performance.now() + HOLD_MS;
    let isHeld = false;
    try {
      for (;;) {
        try {
          return await this.#tryToRestore(pid, offset, partition, nsp);
        } catch {
          if (!isHeld && this.#held >= MAX_HELD) return undefined;
          if (!isHeld) {
            isHeld = true;
            this.#held++;
            metrics.held.inc();
          }
          if (performance.now() > end) return undefined;
          await sleep(100 + Math.random() * 200);
        }
      }
    } finally {
      if (isHeld) this.#held--;
    }
  }

  /** Rejects when Redis can't answer. */
  async #tryToRestore(pid: string, offset: string, partition: number, nsp: Namespace): Promise<Session | undefined> {
    const { host } = this;
    if (!/^[\w-]{8,64}$/.test(pid) || !host.isOpen) return undefined;
    const found = await this.#find(pid);
    if (!found || found.state.partition !== partition) return undefined;
    const { state, owner: from } = found;
    const position = offset === '' ? state : parsePosition(offset);
    const place = position && (await host.locator.locate(position, partition));
    // what is missing makes it another session
    if (!place || place.gap) {
      host.metrics.recoveries.inc({ result: 'gap' });
      return undefined;
    }
    const owner = host.records.newOwner();
    // one that comes too late is found as this process's own when it is tried again
    if (!(await answered(host.records.claim(pid, from, owner, host.recoveryWindowMs)))) return undefined;
    host.endElsewhere(from);
    if (nsp.sockets.has(state.sid)) return undefined;
    const joins = new Map(state.rooms.map(([room, joined]) => [room, joinedAt(state, place, joined)]));
    const resumed = { owner, place, joins };
    this.#resumed.set(state.sid, resumed);
    setTimeout(() => {
      if (this.#resumed.get(state.sid) === resumed) this.#resumed.delete(state.sid);
    }, CONNECT_MS).unref();
    return { sid: state.sid, pid, rooms: [...joins.keys()] as string[], data: dataOf(state), missedPackets: [] };
  }

  /** What was restored for a socket that is about to be connected. */
  take({ id, recovered }: Socket): Resumed | undefined {
    const resumed = this.#resumed.get(id);
    this.#resumed.delete(id);
    return recovered ? resumed : undefined;
  }

  open(socket: Socket, subscriber: Subscriber, keys: RoomKeys, claimed: string | undefined): AdapterSession {
    const { host } = this;
    const { pid } = socketInternals(socket);
    const owner = claimed ?? host.records.newOwner();
    const session = new AdapterSession(socket, subscriber, pid, owner, keys, host);
    host.sessions.set(owner, session);
    host.touch(session);
    return session;
  }

  async #find(pid: string): Promise<FoundRecord<SessionState> | undefined> {
    const { records } = this.host;
    const found = await answered(records.find(pid));
    if (found !== 'orphaned') return found;
    await sleep(LEASE_RENEWED_MS);
    const again = await answered(records.find(pid));
    return again === 'orphaned' ? undefined : again;
  }
}

/** Rejects when Redis doesn't answer within its time. */
async function answered<T>(asked: Promise<T>): Promise<T> {
  const answer = await within(
    REDIS_MS,
    asked.then((value) => ({ value })),
  );
  if (!answer) throw new RelayError('unavailable');
  return answer.value;
}

/** A join of an older epoch that stands behind what survived happened before all that the new epoch brings. */
function joinedAt(state: SessionState, place: Place, joined: number): number {
  return state.roomsEpoch === place.epoch ? joined : Math.min(joined, place.offset);
}
