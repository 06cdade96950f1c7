import { isAllowed, type TokenVerifier } from '../../admission/index.js';
import { type ErrorCode, RelayError, toWireError } from '../../core/errors.js';
import type { Logger } from '../../core/ports.js';
import type { EventLog } from '../../log/index.js';
import { isName } from '../../wire/names.js';
import { formatPosition, type Position, parsePosition } from '../../wire/position.js';
import type { Ephemeral } from '../ephemeral.js';
import { Delivery } from '../frames.js';
import type { Hub } from '../hub.js';
import type { GatewayMetrics } from '../metrics.js';
import type { Publisher, PublishRequest } from '../publisher.js';
import { mayStayIn } from './handshake.js';
import type { Session } from './session.js';

const MAX_ROOMS = 1000;
/** Commands of one socket that wait for the one before: bounded, since a client can send without waiting. */
const MAX_WAITING = 1000;

export interface CommandOptions {
  readonly hub: Hub;
  readonly log: EventLog;
  readonly ephemeral: Ephemeral;
  readonly publisher: Publisher;
  readonly verifier: TokenVerifier;
  readonly metrics: GatewayMetrics;
  readonly logger: Logger;
}

type Command = 'subscribe' | 'unsubscribe' | 'publish' | 'auth-refresh';
type Ack = (answer: object) => void;

/** What a client can ask. Every event is answered through its ack if it brought one; none can throw out of here. */
export class Commands {
  constructor(private readonly options: CommandOptions) {}

  /** Attaches the handlers; call it in the tick in which CONNECT is written, so that nothing sent at once is lost. */
  attach(session: Session): void {
    const handle = (command: Command, work: (payload: unknown) => Promise<object>, isInTurn: boolean): void => {
      session.socket.on(command, (...args: unknown[]) => {
        const ack = args.at(-1);
        const reply: Ack = typeof ack === 'function' ? (answer) => (ack as Ack)(answer) : () => {};
        const payload = typeof args[0] === 'function' ? undefined : args[0];
        if (!this.#mayWork(session, command, reply)) return;
        const run = (): Promise<void> => this.#answer(command, () => work(payload), reply);
        if (isInTurn) session.inTurn(run);
        else void run();
      });
    };
    handle('publish', (payload) => this.#publish(session, payload), false);
    handle('subscribe', (payload) => this.#subscribe(session, payload), true);
    handle('unsubscribe', (payload) => this.#unsubscribe(session, payload), true);
    handle('auth-refresh', (payload) => this.#refresh(session, payload), true);
  }

  #mayWork(session: Session, command: Command, reply: Ack): boolean {
    const now = performance.now();
    const limit = !session.messages.take(now) ? session.messages : undefined;
    const publishLimit =
      !limit && command === 'publish' && !session.publishes.take(now) ? session.publishes : undefined;
    const over = limit ?? publishLimit;
    if (!over && session.waitingCommands < MAX_WAITING) return true;
    this.options.metrics.commands.inc({ command, code: 'too_many_requests' });
    reply({
      ok: false,
      ...toWireError(new RelayError('too_many_requests', undefined, { retryAfterMs: over?.retryAfterMs ?? 1000 })),
    });
    return false;
  }

  async #answer(command: Command, work: () => Promise<object>, reply: Ack): Promise<void> {
    const { metrics, logger } = this.options;
    let code: ErrorCode | 'ok' = 'ok';
    try {
      reply({ ok: true, ...(await work()) });
    } catch (error) {
      const wire = toWireError(error);
      code = wire.code;
      if (!(error instanceof RelayError))
        logger.error({ event: 'command_failed', command, err: error }, 'a command failed by a fault of ours');
      reply({ ok: false, ...wire });
    }
    metrics.commands.inc({ command, code });
  }

  #publish(session: Session, payload: unknown): Promise<object> {
    const { identity } = session;
    return this.options.publisher.publish(fields(payload) as PublishRequest, {
      tenant: identity.tenant,
      name: `user:${identity.user}`,
      mayPublish: (room) => isAllowed(identity.permissions.publish, room),
    });
  }

  async #subscribe(session: Session, payload: unknown): Promise<object> {
    const { hub, ephemeral } = this.options;
    const { subscriber } = session;
    const { room, from } = fields(payload);
    const name = this.#room(session, room);
    const start = from === undefined ? undefined : this.#start(session, from);
    if (subscriber.joins.has(name) && !start) return { position: hub.positionOf(subscriber), recovered: true };
    if (subscriber.joins.size >= MAX_ROOMS && !subscriber.joins.has(name))
      throw new RelayError('bad_request', `room: a socket has at most ${MAX_ROOMS} rooms`);

    const joined = ephemeral.join(name);
    const before = subscriber.joins.get(name);
    const undo = (): void => {
      if (before === undefined) hub.leave(subscriber, name);
      ephemeral.leave(name);
    };
    try {
      if (!start) {
        const at = hub.joinPosition(subscriber);
        hub.join(subscriber, name, at.offset);
        await this.#record(session, undo);
        await joined;
        return { position: formatPosition(subscriber.epoch, subscriber.partition, at.ms, at.offset), recovered: true };
      }
      return await hub.pausedDuring(subscriber, async () => {
        const isComplete = await this.#replay(session, name, start);
        if (before === undefined) hub.join(subscriber, name, subscriber.offset);
        await this.#record(session, undo);
        await joined;
        return { position: hub.positionOf(subscriber), recovered: isComplete };
      });
    } catch (error) {
      if (error instanceof RelayError && error.code !== 'unavailable') undo();
      throw error;
    }
  }

  /** A subscribe that no other pod would know of is none. */
  async #record(session: Session, undo: () => void): Promise<void> {
    if (session.subscriber.state === 'closed') throw new RelayError('cancelled');
    if (await session.save()) return;
    undo();
    throw new RelayError('unavailable', 'the subscription could not be stored', { mayHaveHappened: false });
  }

  #room(session: Session, room: unknown): string {
    if (!isName(room))
      throw new RelayError('bad_request', 'room: wants 1 to 200 characters without control characters');
    const { identity } = session;
    if (!identity.rooms.includes(room) && !isAllowed(identity.permissions.subscribe, room))
      throw new RelayError('permission_denied', `subscribing to ${JSON.stringify(room)} is not allowed`);
    return session.scopedRoom(room);
  }

  #start({ subscriber }: Session, from: unknown): Position {
    const position = parsePosition(from);
    if (!position || position.partition !== subscriber.partition)
      throw new RelayError('bad_request', 'from: wants a position of this log');
    return position;
  }

  /**
   * Writes what the room brought between `start` and where the socket stands, without positions. Live delivery waits.
   * @returns false if some of it is gone; the client has been told which
   */
  async #replay(session: Session, room: string, start: Position): Promise<boolean> {
    const { hub, log } = this.options;
    const { subscriber } = session;
    const { partition } = subscriber;
    const here = log.resolve(start);
    if (here.kind === 'invalid') throw new RelayError('bad_request', 'from: wants a position of this log');
    let isComplete = here.kind === 'valid';
    if (here.kind === 'epoch') {
      const at = (offset: number) => ({ epoch: start.epoch, ms: start.ms, offset });
      const from = at(Math.min(here.offset + 1, start.offset));
      hub.tellGap(subscriber, { partition, reason: 'epoch', from, to: at(start.offset) });
    }
    let after = { ms: here.ms, offset: here.offset };
    const end = subscriber.offset;
    while (after.offset < end && subscriber.state !== 'closed') {
      const page = await log.page(partition, after, { entries: 500, bytes: 256 * 1024 }).catch((error: unknown) => {
        throw new RelayError('unavailable', undefined, { cause: error });
      });
      if (page.epoch !== subscriber.epoch) throw new RelayError('unavailable', 'the log began a new epoch');
      const missing = [...page.holes];
      if (after.offset + 1 < page.first) missing.unshift({ from: after.offset + 1, to: page.first - 1 });
      for (const { from, to } of missing) {
        if (from > end) continue;
        isComplete = false;
        const at = (offset: number) => ({ epoch: page.epoch, ms: after.ms, offset });
        hub.tellGap(subscriber, { partition, reason: 'trimmed', from: at(from), to: at(Math.min(to, end)) });
      }
      const wanted = page.entries.filter((entry) => entry.offset <= end && entry.header.rooms.includes(room));
      await this.#write(
        session,
        wanted.map((entry) => new Delivery(entry, '')),
      );
      after = page.isLast ? { ms: page.newest.ms, offset: Math.max(end, page.newest.offset) } : page.scanned;
    }
    return isComplete;
  }

  async #write({ subscriber }: Session, deliveries: readonly Delivery[]): Promise<void> {
    if (deliveries.length === 0) return;
    this.options.metrics.delivered.inc({ path: 'log' }, deliveries.length);
    await new Promise<void>((resolve, reject) => {
      const gone = setInterval(() => {
        if (subscriber.state === 'closed' || !subscriber.outbox.isOpen) reject(new RelayError('cancelled'));
      }, 500);
      const done = (): void => {
        clearInterval(gone);
        resolve();
      };
      deliveries.forEach((delivery, index) => {
        subscriber.outbox.write(delivery.replayPacket, index === deliveries.length - 1 ? done : undefined);
      });
      gone.unref();
    });
  }

  async #unsubscribe(session: Session, payload: unknown): Promise<object> {
    const { hub, ephemeral } = this.options;
    const { subscriber } = session;
    const { room } = fields(payload);
    if (!isName(room))
      throw new RelayError('bad_request', 'room: wants 1 to 200 characters without control characters');
    const name = session.scopedRoom(room);
    if (subscriber.joins.has(name)) {
      hub.leave(subscriber, name);
      ephemeral.leave(name);
      // Redis away: the sweep stores it later; what is left behind is left at once
      await session.save();
    }
    return { position: hub.positionOf(subscriber), recovered: true };
  }

  async #refresh(session: Session, payload: unknown): Promise<object> {
    const { hub, ephemeral, verifier } = this.options;
    const { subscriber } = session;
    const identity = await verifier.identify(fields(payload).token);
    const old = session.identity;
    if (identity.tenant !== old.tenant || identity.user !== old.user || identity.device !== old.device)
      throw new RelayError('permission_denied', "the token is somebody else's");
    subscriber.identity = identity;
    session.watchExpiry();
    for (const room of [...subscriber.joins.keys()]) {
      if (mayStayIn(identity, room)) continue;
      hub.leave(subscriber, room);
      ephemeral.leave(room);
    }
    await session.save();
    return {};
  }
}

/** The payload's own fields; anything but an object has none, and no name leads to a prototype. */
function fields(payload: unknown): Readonly<Record<string, unknown>> {
  if (typeof payload !== 'object' || payload === null || Array.isArray(payload))
    throw new RelayError('bad_request', 'wants an object');
  const own: Record<string, unknown> = Object.create(null);
  for (const key of Object.keys(payload)) own[key] = (payload as Record<string, unknown>)[key];
  return own;
}
