import { type Authenticator, isAllowed } from '../../admission/index.js';
import { type ErrorCode, RelayError, toWireError } from '../../core/errors.js';
import type { Logger } from '../../core/ports.js';
import { sleep, within } from '../../core/sleep.js';
import type { EventLog } from '../../log/index.js';
import type { Presence } from '../../presence/index.js';
import { type Failure, RPC_COMMANDS, type RpcCommand } from '../../rpc/index.js';
import { escapePart, isName, isRoom } from '../../wire/names.js';
import { formatPosition, parsePosition } from '../../wire/position.js';
import type { Ephemeral } from '../ephemeral.js';
import { encodeEvent, joinParcels, type Parcel } from '../frames.js';
import type { Hub } from '../hub.js';
import type { Locator, Place } from '../locator.js';
import type { GatewayMetrics } from '../metrics.js';
import type { Publisher, PublishRequest } from '../publisher.js';
import { mayStayIn } from './handshake.js';
import type { Session } from './session.js';
import { Slots } from './slots.js';

const MAX_ROOMS = 1000;
const PAGE_MS = 1500;
const NEW_EPOCH = 'the log began a new epoch';
/** Characters in commands of one socket that wait for the one before: a client can send without waiting. */
const MAX_WAITING = 500_000;
/** What each of them counts beside its texts. */
const COMMAND_SIZE = 200;
/** What a command that waits is kept of: longer than any room, position or token, or as long as any name. */
const KEPT = { room: 4000, from: 64, token: 16_384 } as const;
/** Pages that replays read at once in this pod: recovery reads over the same connection. */
const REPLAY_READS = 2;
/** Largest results, or requests, that a client may leave unread: 16 MB as the limits are. */
const UNREAD_PAYLOADS = 16;
/** A subscribe waits so long for its record to be stored. */
const SAVE_MS = 1500;

export interface CommandOptions {
  readonly hub: Hub;
  readonly log: EventLog;
  readonly locator: Locator;
  readonly ephemeral: Ephemeral;
  readonly publisher: Publisher;
  readonly presence: Presence;
  readonly authenticator: Authenticator;
  readonly slowReaderMs: number;
  readonly rpcMaxPayloadBytes: number;
  readonly metrics: GatewayMetrics;
  readonly logger: Logger;
}

type Command = 'subscribe' | 'unsubscribe' | 'publish' | 'auth-refresh' | 'presence-get' | RpcCommand;
type Ack = (answer: object) => void;

/** What a client can ask. Every event is answered through its ack if it brought one; none can throw out of here. */
export class Commands {
  readonly #replayReads = new Slots(REPLAY_READS);

  constructor(private readonly options: CommandOptions) {}

  /** Attaches the handlers; call it in the tick in which CONNECT is written, so that nothing sent at once is lost. */
  attach(session: Session): void {
    const listen = (command: Command, run: (payload: unknown, reply: Ack) => void): void => {
      session.socket.on(command, (...args: unknown[]) => {
        const ack = args.at(-1);
        const reply: Ack = typeof ack === 'function' ? (answer) => this.#reply(session, ack as Ack, answer) : () => {};
        if (this.#mayWork(session, command, reply)) run(args[0], reply);
      });
    };
    const inTurn = (command: Command, names: readonly Kept[], work: (payload: unknown) => Promise<object>): void =>
      listen(command, (payload, reply) => {
        const kept = lightened(payload, names);
        session.inTurn(sizeOf(kept), () => this.#answer(session, command, () => work(kept), reply));
      });
    listen('publish', (payload, reply) => {
      void this.#answer(session, 'publish', () => this.#publish(session, payload), reply);
    });
    inTurn('subscribe', ['room', 'from'], (payload) => this.#subscribe(session, payload));
    inTurn('unsubscribe', ['room'], (payload) => this.#unsubscribe(session, payload));
    for (const command of RPC_COMMANDS)
      listen(command, (payload, reply) => {
        session.subscriber.allowance = UNREAD_PAYLOADS * this.options.rpcMaxPayloadBytes;
        void this.#answer(session, command, () => session.rpc.answer(command, payload), reply);
      });
    inTurn('auth-refresh', ['token'], (payload) => this.#refresh(session, payload));
    listen('presence-get', (payload, reply) => {
      void this.#answer(session, 'presence-get', () => this.#presenceOf(session, payload), reply);
    });
  }

  #mayWork(session: Session, command: Command, reply: Ack): boolean {
    const now = performance.now();
    const limit = !session.messages.take(now) ? session.messages : undefined;
    const publishLimit =
      !limit && command === 'publish' && !session.publishes.take(now) ? session.publishes : undefined;
    const over = limit ?? publishLimit;
    if (!over && session.waitingSize < MAX_WAITING) return true;
    this.options.metrics.commands.inc({ command, code: 'too_many_requests' });
    reply({
      ok: false,
      ...(isCall(command) && { mayHaveRun: false }),
      ...toWireError(new RelayError('too_many_requests', undefined, { retryAfterMs: over?.retryAfterMs ?? 1000 })),
    });
    return false;
  }

  /** Answers are not logged: whoever asks on and on and reads none of them is closed. */
  #reply({ subscriber }: Session, ack: Ack, answer: object): void {
    subscriber.outbox.inOneSegment(() => ack(answer));
    if (subscriber.leavesTooMuch) subscriber.closeAsSlow(this.options.metrics, 'answers are not read');
  }

  async #answer(session: Session, command: Command, work: () => Promise<object>, reply: Ack): Promise<void> {
    const { metrics, logger } = this.options;
    let code: ErrorCode | 'ok' = 'ok';
    try {
      // what waited for its turn while the connection was lost
      if (session.subscriber.state === 'closed') throw new RelayError('cancelled');
      const answer = { ok: true, ...(await work()) };
      if (!answer.ok) code = (answer as unknown as Failure).code;
      reply(answer);
    } catch (error) {
      const wire = toWireError(error);
      code = wire.code;
      if (!(error instanceof RelayError))
        logger.error({ event: 'command_failed', command, err: error }, 'a command failed by a fault of ours');
      reply({ ok: false, ...wire, ...(isCall(command) && { mayHaveRun: false }) });
    }
    metrics.commands.inc({ command, code });
  }

  #publish(session: Session, payload: unknown): Promise<object> {
    const { identity } = session;
    return this.options.publisher.publish(
      fields(payload, 'room', 'event', 'data', 'id', 'ephemeral') as PublishRequest,
      {
        tenant: identity.tenant,
        name: `user:${identity.user}`,
        mayPublish: (room) => isAllowed(identity.permissions.publish, room),
        fence: () => session.entrance.fence(),
      },
    );
  }

  async #subscribe(session: Session, payload: unknown): Promise<object> {
    const { hub, ephemeral } = this.options;
    const { subscriber } = session;
    const { room, from } = fields(payload, 'room', 'from');
    const name = this.#room(session, room);
    const isNew = !subscriber.joins.has(name);
    if (isNew && subscriber.joins.size >= MAX_ROOMS)
      throw new RelayError('bad_request', `room: a socket has at most ${MAX_ROOMS} rooms`);
    const start = from === undefined ? undefined : await this.#start(session, from);
    if (!isNew) {
      // what the room brought since it was joined has been given, or will be
      const isComplete = !start || (await hub.pausedDuring(subscriber, () => this.#replay(session, name, start)));
      return { position: hub.positionOf(subscriber), recovered: isComplete };
    }
    const joined = ephemeral.join(name);
    try {
      if (!start) {
        const { epoch, partition } = subscriber;
        const at = hub.joinPosition(subscriber);
        hub.join(subscriber, name, at.offset);
        await this.#record(session);
        await joined;
        return { position: formatPosition(epoch, partition, at.ms, at.offset), recovered: true };
      }
      return await hub.pausedDuring(subscriber, async () => {
        const isComplete = await this.#replay(session, name, start);
        // a position of another pod's may be ahead of what this one has read
        hub.join(subscriber, name, Math.max(subscriber.offset, start.offset));
        await this.#record(session);
        // a replay can take long, and the room may have lost its other members meanwhile
        await ephemeral.join(name);
        return { position: hub.positionOf(subscriber), recovered: isComplete };
      });
    } catch (error) {
      hub.leave(subscriber, name);
      ephemeral.leave(name);
      // a record that was stored too late must not hold the room
      void session.save();
      throw error;
    }
  }

  /** A subscribe that no other pod would know of is none. */
  async #record(session: Session): Promise<void> {
    if (session.subscriber.state === 'closed') throw new RelayError('cancelled');
    if (await session.save(SAVE_MS)) return;
    throw new RelayError('unavailable', 'the subscription could not be stored');
  }

  #room(session: Session, room: unknown): string {
    if (!isRoom(room))
      throw new RelayError('bad_request', 'room: wants 1 to 200 characters without control characters');
    const { identity } = session;
    if (!identity.rooms.includes(room) && !isAllowed(identity.permissions.subscribe, room))
      throw new RelayError('permission_denied', `subscribing to ${JSON.stringify(room)} is not allowed`);
    return session.scopedRoom(room);
  }

  async #start({ subscriber }: Session, from: unknown): Promise<Place> {
    const position = parsePosition(from);
    const place = position && (await this.options.locator.locate(position, subscriber.partition));
    if (!place) throw new RelayError('bad_request', 'from: wants a position of this log');
    return place;
  }

  /**
   * Writes what the room brought between `start` and where the socket stands, or joined the room, without positions. Live
   * delivery waits.
   *
   * @returns false if some of it is gone; the client has been told which
   */
  async #replay(session: Session, room: string, start: Place): Promise<boolean> {
    const { hub, log } = this.options;
    const { subscriber } = session;
    const { partition, epoch } = subscriber;
    let isComplete = start.gap === undefined;
    if (start.gap) hub.tellGap(subscriber, start.gap);
    let after = { ms: start.ms, offset: start.offset };
    const end = subscriber.joins.get(room) ?? subscriber.offset;
    while (after.offset < end) {
      if (subscriber.state === 'closed') throw new RelayError('cancelled');
      const from = after;
      const page = await this.#replayReads
        .run(() => within(PAGE_MS, log.page(partition, from, { entries: 500, bytes: 256 * 1024 })))
        .catch((error: unknown) => {
          throw new RelayError('unavailable', undefined, { cause: error });
        });
      if (!page) throw new RelayError('unavailable');
      if (page.epoch !== epoch) throw new RelayError('unavailable', NEW_EPOCH);
      const missing = [...page.holes];
      if (after.offset + 1 < page.first) missing.unshift({ from: after.offset + 1, to: page.first - 1 });
      for (const { from, to } of missing) {
        if (from > end) continue;
        isComplete = false;
        const at = (offset: number) => ({ epoch, ms: after.ms, offset });
        hub.tellGap(subscriber, { partition, reason: 'trimmed', from: at(from), to: at(Math.min(to, end)) });
      }
      const wanted = page.entries.filter((entry) => entry.offset <= end && entry.header.rooms.includes(room));
      await this.#write(
        session,
        wanted.map(({ payload, attachments }) => encodeEvent(payload, attachments, undefined)),
      );
      after = page.isLast ? { ms: page.newest.ms, offset: Math.max(end, page.newest.offset) } : page.scanned;
      // a new epoch moved the socket's place, also while the last page was leaving
      if (subscriber.epoch !== epoch) throw new RelayError('unavailable', NEW_EPOCH);
    }
    if (start.epoch !== subscriber.epoch) throw new RelayError('unavailable', NEW_EPOCH);
    return isComplete;
  }

  /** Resolves when all of it has left; rejects when the connection is gone, or nothing drains. */
  async #write({ subscriber }: Session, parcels: readonly Parcel[]): Promise<void> {
    if (parcels.length === 0) return;
    const { metrics, slowReaderMs } = this.options;
    const { outbox } = subscriber;
    metrics.delivered.inc({ path: 'log' }, parcels.length);
    let isSent = false;
    outbox.write(joinParcels(parcels), () => {
      isSent = true;
    });
    let seen = { progress: Number.NaN, at: performance.now() };
    while (!isSent) {
      if (!outbox.isOpen) throw new RelayError('cancelled');
      const { progress } = outbox;
      if (progress !== seen.progress) seen = { progress, at: performance.now() };
      else if (performance.now() - seen.at > slowReaderMs) subscriber.closeAsSlow(metrics, 'nothing drained');
      await sleep(5);
    }
  }

  async #unsubscribe(session: Session, payload: unknown): Promise<object> {
    const { hub, ephemeral } = this.options;
    const { subscriber } = session;
    const { room } = fields(payload, 'room');
    if (!isRoom(room))
      throw new RelayError('bad_request', 'room: wants 1 to 200 characters without control characters');
    const name = session.scopedRoom(room);
    if (subscriber.joins.has(name)) {
      // it brings events until the record is without it: a room is left everywhere or nowhere
      session.leaving = name;
      const isSaved = await session.save(SAVE_MS);
      session.leaving = undefined;
      if (!isSaved) {
        void session.save();
        throw new RelayError('unavailable', 'the subscription could not be ended');
      }
      hub.leave(subscriber, name);
      ephemeral.leave(name);
    }
    return { position: hub.positionOf(subscriber), recovered: true };
  }

  async #refresh(session: Session, payload: unknown): Promise<object> {
    const { hub, ephemeral, authenticator } = this.options;
    const { subscriber } = session;
    const identity = await authenticator.identify(fields(payload, 'token').token);
    if (subscriber.state === 'closed') throw new RelayError('cancelled');
    const old = session.identity;
    if (identity.tenant !== old.tenant || identity.user !== old.user || identity.device !== old.device)
      throw new RelayError('permission_denied', "the token is somebody else's");
    await session.entrance.renew(identity);
    if (session.entrance.ending || session.hasEnded) throw new RelayError('cancelled');
    session.watchExpiry();
    for (const room of [...subscriber.joins.keys()]) {
      if (mayStayIn(identity, room)) continue;
      hub.leave(subscriber, room);
      ephemeral.leave(room);
    }
    await session.rpc.recheck();
    await session.save();
    return {};
  }

  /** Somebody else's is for who may call all of that user's methods: the answer names them. */
  async #presenceOf({ identity }: Session, payload: unknown): Promise<object> {
    const { user = identity.user } = fields(payload, 'user');
    if (!isName(user))
      throw new RelayError('bad_request', 'user: wants 1 to 200 characters without control characters');
    if (user !== identity.user && !isAllowed(identity.permissions.call, `${escapePart(user)}/*`))
      throw new RelayError('permission_denied', `the presence of ${JSON.stringify(user)} is not for this token`);
    return this.options.presence.of(identity.tenant, user);
  }
}

/** Its failures say whether the handler may have run. */
function isCall(command: Command): boolean {
  return command === 'rpc-call' || command === 'rpc-attach';
}

type Kept = keyof typeof KEPT;

/** What is kept of a command that waits for its turn: a payload has up to two megabytes. */
function lightened(payload: unknown, names: readonly Kept[]): Readonly<Record<string, string | null>> | undefined {
  if (typeof payload !== 'object' || payload === null || Array.isArray(payload)) return undefined;
  const kept: Record<string, string | null> = {};
  for (const name of names) {
    if (!Object.hasOwn(payload, name)) continue;
    const value = (payload as Record<string, unknown>)[name];
    kept[name] = typeof value === 'string' && value.length <= KEPT[name] ? value : null;
  }
  return kept;
}

function sizeOf(kept: ReturnType<typeof lightened>): number {
  return Object.values(kept ?? {}).reduce((sum, text) => sum + (text?.length ?? 0), COMMAND_SIZE);
}

/** Some of the payload's own fields; anything but an object has none, and no name leads to a prototype. */
function fields(payload: unknown, ...names: readonly string[]): Readonly<Record<string, unknown>> {
  const isObject = typeof payload === 'object' && payload !== null && !Array.isArray(payload);
  if (!isObject || ArrayBuffer.isView(payload)) throw new RelayError('bad_request', 'wants an object');
  const own: Record<string, unknown> = Object.create(null);
  for (const name of names) if (Object.hasOwn(payload, name)) own[name] = (payload as Record<string, unknown>)[name];
  return own;
}
