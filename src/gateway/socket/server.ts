import type { Server as HttpServer, IncomingMessage } from 'node:http';
import { Server, type Socket } from 'socket.io';
import { fullJitter } from '../../core/backoff.js';
import { RelayError, toWireError } from '../../core/errors.js';
import type { Logger, Meter } from '../../core/ports.js';
import { Service } from '../../core/service.js';
import { sleep, within } from '../../core/sleep.js';
import type { Inbox } from '../../pods/index.js';
import { type Rpc, separateAcks } from '../../rpc/index.js';
import type { Ephemeral } from '../ephemeral.js';
import type { Hub } from '../hub.js';
import type { DisconnectCode, GatewayMetrics } from '../metrics.js';
import { Sweep } from '../sweep.js';
import type { Commands } from './commands.js';
import type { Ending } from './entrance.js';
import { type Handshake, toConnectError } from './handshake.js';
import { type HoldSlots, Refusal } from './refusal.js';
import type { Session } from './session.js';

export interface SocketServerOptions {
  readonly http: HttpServer;
  readonly path: string;
  readonly pingIntervalMs: number;
  readonly pingTimeoutMs: number;
  readonly maxPayloadBytes: number;
  readonly rpcMaxPayloadBytes: number;
  readonly positionHeartbeatMs: number;
  readonly origins: readonly string[];
  readonly polling: boolean;
  readonly handshake: Handshake;
  readonly held: HoldSlots;
  readonly commands: Commands;
  readonly sessions: Map<string, Session>;
  readonly hub: Hub;
  readonly ephemeral: Ephemeral;
  readonly inbox: Inbox;
  readonly rpc: Rpc;
  readonly metrics: GatewayMetrics;
  readonly meter: Meter;
  readonly logger: Logger;
}

/** Refusals that are counted under their code. */
const REFUSALS = new Set<string>(['unauthorized', 'token_expired', 'bad_request', 'tenant_inactive']);

/** The Socket.IO side of the public listener. Rooms and delivery are the hub's: Socket.IO carries packets and pings. */
export class SocketServer extends Service {
  readonly #io: Server;
  readonly #sweep: Sweep;
  readonly #ending = new Set<Promise<void>>();
  #isDraining = false;
  /** Connections with a socket, or one on its way in: a second one on the same connection would double its events. */
  readonly #taken = new WeakSet<object>();

  constructor(private readonly options: SocketServerOptions) {
    super();
    const { sessions, hub, positionHeartbeatMs, meter } = options;
    this.#io = new Server({
      path: options.path,
      transports: ['polling', 'websocket'],
      allowUpgrades: options.polling,
      pingInterval: options.pingIntervalMs,
      pingTimeout: options.pingTimeoutMs,
      // twice the limit, so that an ack can say payload_too_large
      maxHttpBufferSize: 2 * Math.max(options.maxPayloadBytes, options.rpcMaxPayloadBytes) + 64 * 1024,
      serveClient: false,
      cors: options.polling ? { origin: options.origins.length > 0 ? [...options.origins] : '*' } : undefined,
      allowRequest: (request, decide) => this.#allow(request, decide),
    });
    this.#sweep = new Sweep(sessions, hub, positionHeartbeatMs);
    meter.gauge({ name: 'connections', help: 'Sockets that are connected.' }, () => hub.subscriberCount);
    meter.gauge({ name: 'slow_consumers_behind', help: 'Sockets that are catching up.' }, () => hub.behindCount);
    meter.gauge({ name: 'ring_bytes', help: 'Recent entries kept in memory.' }, () => hub.ringBytes);
  }

  get connectionCount(): number {
    return this.options.hub.subscriberCount;
  }

  protected async onStart(): Promise<void> {
    const { http, inbox, sessions } = this.options;
    separateAcks(this.#io.sockets);
    this.#io.use((socket, next) => void this.#admit(socket, next));
    this.#io.on('connection', (socket) => this.#connected(socket));
    inbox.on('superseded', ({ owner }) => {
      if (typeof owner === 'string') sessions.get(owner)?.supersede();
    });
    this.#io.attach(http);
    this.#sweep.start();
  }

  protected async onStop(): Promise<void> {
    this.#sweep.stop();
    this.#io.engine.close();
    await within(1000, Promise.all(this.#ending));
    this.options.hub.stop();
  }

  /** A new epoch began: every living socket's record is written again. */
  onEpoch(): void {
    this.#sweep.resave('all');
  }

  /** Redis can be reached again. */
  onRedisBack(): void {
    this.#sweep.resave('dirty');
  }

  /**
   * Tells every client to come back elsewhere and closes its transport, spread over `spreadMs`, so that a stock client
   * reconnects by itself. Resolves when all records are stored, or some seconds later.
   */
  async drain(spreadMs: number, signal: AbortSignal): Promise<void> {
    const sessions = [...this.options.sessions.values()];
    const until = performance.now() + spreadMs;
    const drained = sessions.map(async (session) => {
      if (spreadMs > 0) await sleep(Math.random() * spreadMs, signal);
      // who has requests in work that nobody else may have stays until it has answered them
      await session.rpc.retire(until, signal);
      this.#sendAway(session);
    });
    await Promise.all(drained);
    // whoever came meanwhile is told at once
    this.#isDraining = true;
    for (const session of this.options.sessions.values()) this.#sendAway(session);
    const gone = (): boolean => this.options.hub.subscriberCount === 0;
    for (let waited = 0; waited < 1500 && !gone(); waited += 10) await sleep(10);
    await within(1000, Promise.all(this.#ending));
  }

  #sendAway({ socket, subscriber }: Session): void {
    // one that is on its way in is told when it is connected
    if (!socket.connected || subscriber.state === 'closed') return;
    subscriber.endCode = 'draining';
    subscriber.outbox.emit('holdfast:drain', { reconnectInMs: Math.round(fullJitter(0, 1000, 1000)) });
    subscriber.outbox.closeTransport();
  }

  // --- a request

  #allow(request: IncomingMessage, decide: (error: string | null, isAllowed: boolean) => void): void {
    const { origins, polling, metrics } = this.options;
    const { origin } = request.headers;
    if (origins.length > 0 && origin !== undefined && !origins.includes(origin)) {
      metrics.refused.inc({ reason: 'origin' });
      return decide('origin not allowed', false);
    }
    const transports = new URL(request.url ?? '', 'http://localhost').searchParams.getAll('transport');
    if (!polling && !(transports.length === 1 && transports[0] === 'websocket')) {
      metrics.refused.inc({ reason: 'polling' });
      return decide("HTTP long-polling is off here: connect with { transports: ['websocket'] }", false);
    }
    decide(null, true);
  }

  // --- a socket

  async #admit(socket: Socket, next: (error?: Error) => void): Promise<void> {
    const { handshake, metrics, logger, sessions } = this.options;
    const { conn } = socket;
    if (this.#taken.has(conn)) {
      conn.close(true);
      return next(new Error('one socket per connection'));
    }
    this.#taken.add(conn);
    try {
      const session = await handshake.admit(socket);
      if (session && conn.readyState === 'open') {
        socket.data.session = session;
        conn.once('close', () => {
          // lost before Socket.IO connected it: no disconnect event will come
          if (!socket.connected && sessions.has(session.owner)) this.#abandon(session);
        });
        return next();
      }
      if (session) this.#abandon(session);
      metrics.refused.inc({ reason: 'aborted' });
      next(new Error('the connection is gone'));
    } catch (error) {
      if (conn.readyState !== 'open') {
        metrics.refused.inc({ reason: 'aborted' });
        return next(new Error('the connection is gone'));
      }
      if (error instanceof Refusal) {
        metrics.refused.inc({ reason: error.reason });
        socket.data.refusal = error;
        return next();
      }
      const { code } = toWireError(error);
      if (!(error instanceof RelayError))
        logger.error({ event: 'handshake_failed', err: error }, 'a handshake failed by a fault of ours');
      metrics.refused.inc({ reason: REFUSALS.has(code) ? code : 'other' });
      this.#taken.delete(conn);
      next(toConnectError(error));
    }
  }

  /** It was lost after its record was stored: its client resumes from that. */
  #abandon(session: Session): void {
    this.#end(session, false);
    this.options.handshake.discard(session);
  }

  #connected(socket: Socket): void {
    const { hub, commands, metrics, ephemeral, sessions, held } = this.options;
    if (socket.data.refusal instanceof Refusal) {
      socket.on('disconnect', () => this.#taken.delete(socket.conn));
      void socket.data.refusal.turnAway(socket, held);
      return;
    }
    const session = socket.data.session as Session;
    const { subscriber } = session;
    metrics.accepted.inc();
    socket.on('disconnect', (reason) => {
      this.#taken.delete(socket.conn);
      sessions.delete(session.owner);
      metrics.disconnects.inc({ code: subscriber.endCode ?? disconnectCode(reason) });
      // the successor of a replaced one has its place, and registers again what it served
      const isLost = subscriber.endCode === 'session_replaced';
      const isFinal = !isLost && (reason === 'client namespace disconnect' || reason === 'server namespace disconnect');
      this.#end(session, isFinal);
      session.visit?.leave(isFinal);
      for (const room of subscriber.joins.keys()) ephemeral.leave(room);
    });
    if (session.isSuperseded) {
      subscriber.endCode = 'replaced';
      return subscriber.outbox.cut();
    }
    const { entrance } = session;
    if (entrance.ending) return this.#dismiss(session, entrance.ending);
    entrance.onEnding = (ending) => this.#dismiss(session, ending);
    commands.attach(session);
    session.rpc.takeUp();
    session.watchExpiry();
    for (const gap of [session.gap, hub.carryOver(subscriber)]) if (gap) hub.tellGap(subscriber, gap);
    hub.add(subscriber);
    if (this.#isDraining) this.#sendAway(session);
  }

  /** After a disconnect by the server a stock client does not come back. */
  #dismiss({ socket, subscriber }: Session, { code, reason }: Ending): void {
    if (!subscriber.outbox.isOpen) return;
    subscriber.endCode = code === 'unauthorized' ? 'revoked' : code;
    subscriber.outbox.emit('holdfast:closing', { code, reason, reconnect: false });
    socket.disconnect();
    subscriber.outbox.closeTransport();
  }

  #end(session: Session, isFinal: boolean): void {
    const ending = session.end(isFinal).finally(() => this.#ending.delete(ending));
    this.#ending.add(ending);
  }
}

function disconnectCode(reason: string): DisconnectCode {
  switch (reason) {
    case 'client namespace disconnect':
      return 'client';
    case 'ping timeout':
      return 'ping_timeout';
    case 'transport close':
    case 'transport error':
    case 'forced close':
    case 'parse error':
      return 'transport';
    default:
      return 'other';
  }
}
