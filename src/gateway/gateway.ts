import type { Admission, ApiKeys, Authenticator, DeviceSessions } from '../admission/index.js';
import type { Logger, Meter } from '../core/ports.js';
import { Service } from '../core/service.js';
import type { EventLog, ReaderHandler } from '../log/index.js';
import type { Pods } from '../pods/index.js';
import type { Database } from '../postgres/database.js';
import type { Presence } from '../presence/index.js';
import type { Keys } from '../redis/keys.js';
import type { Rpc } from '../rpc/index.js';
import { Ephemeral } from './ephemeral.js';
import { PublicHttpServer } from './http/server.js';
import { Hub } from './hub.js';
import { Locator } from './locator.js';
import { gatewayMetrics } from './metrics.js';
import { Publisher } from './publisher.js';
import { ResumeRecords } from './resume-records.js';
import { Commands } from './socket/commands.js';
import { Handshake } from './socket/handshake.js';
import { HoldSlots } from './socket/refusal.js';
import { SocketServer } from './socket/server.js';
import type { ResumeState, Session } from './socket/session.js';

/** Entries that a starting pod takes into memory, so that clients who come right after a deploy need no log reads. */
const PRELOAD_ENTRIES = 5000;

export interface GatewayOptions {
  readonly url: string;
  readonly keys: Keys;
  readonly pod: string;
  readonly processId: string;
  readonly pods: Pods;
  readonly presence: Presence;
  readonly rpc: Rpc;
  readonly authenticator: Authenticator;
  readonly admission: Admission;
  readonly devices: DeviceSessions;
  readonly singleSession: string;
  readonly trustProxy: number | undefined;
  /** Of the tenants, devices and keys that the HTTP API manages. */
  readonly database: Database | undefined;
  readonly apiKeys: ApiKeys;
  readonly version: string;
  readonly host: string;
  readonly port: number;
  readonly socketPath: string;
  readonly pingIntervalMs: number;
  readonly pingTimeoutMs: number;
  readonly maxPayloadBytes: number;
  readonly rpcMaxPayloadBytes: number;
  readonly positionHeartbeatMs: number;
  readonly recoveryWindowMs: number;
  readonly ringBytes: number;
  readonly slowReaderMs: number;
  readonly messagesPerSecond: number;
  readonly publishesPerSecond: number;
  readonly handshakes: number;
  readonly heldHandshakes: number;
  readonly origins: readonly string[];
  readonly polling: boolean;
  readonly onFenced: () => void;
  readonly logger: Logger;
  readonly meter: Meter;
}

/** Everything that clients and back ends connect to: sockets, HTTP, and the way from the log to both. */
export class Gateway extends Service {
  readonly #hub: Hub;
  readonly #records: ResumeRecords<ResumeState>;
  #parts:
    | { readonly http: PublicHttpServer; readonly sockets: SocketServer; readonly ephemeral: Ephemeral }
    | undefined;
  #log: EventLog | undefined;

  constructor(private readonly options: GatewayOptions) {
    super();
    const { ringBytes, slowReaderMs, logger, meter, onFenced, pods, keys, processId, recoveryWindowMs } = options;
    this.#metrics = gatewayMetrics(meter);
    this.#records = new ResumeRecords(pods.connection, keys, processId, recoveryWindowMs);
    this.#hub = new Hub({
      ringBytes,
      metrics: this.#metrics,
      slowReaderMs,
      logger,
      onFenced,
      onEpoch: () => this.#parts?.sockets.onEpoch(),
    });
  }

  readonly #metrics: ReturnType<typeof gatewayMetrics>;

  /** What the log's readers call. */
  get readerHandler(): ReaderHandler {
    return this.#hub;
  }

  get connectionCount(): number {
    return this.#parts?.sockets.connectionCount ?? 0;
  }

  get port(): number {
    return this.#parts?.http.port ?? this.options.port;
  }

  /** The log delivers to this gateway; it has started and does not read yet. */
  attach(log: EventLog): void {
    this.#log = log;
    this.#hub.attach(log);
  }

  /** Whether that process has a connection to Redis. */
  async isConnected(processId: string): Promise<boolean> {
    return (await this.#parts?.ephemeral.isConnected(processId)) ?? true;
  }

  /** For the reaper: that process's resume records stay good for the recovery window. */
  buryProcess(processId: string): Promise<void> {
    return this.#records.markDead(processId);
  }

  /** This process was taken for dead, and isn't. */
  async returnToLife(): Promise<void> {
    await this.#records.unmarkDead().catch(() => {});
  }

  /** Everything is ready but nothing is bound. */
  protected async onStart(): Promise<void> {
    const { options } = this;
    const log = this.#log;
    if (!log) throw new Error('attach a log before start');
    const { url, pod, keys, pods, logger, meter, apiKeys, processId } = options;
    const shared = { hub: this.#hub, metrics: this.#metrics, logger };
    const ephemeral = new Ephemeral({ ...shared, url, pod, keys, publishing: pods.connection });
    const locator = new Locator(log, this.#hub);
    const publisher = new Publisher({ log, ephemeral, maxPayloadBytes: options.maxPayloadBytes });
    const http = new PublicHttpServer({ ...options, apiKeys, publisher, log, locator, metrics: this.#metrics });
    const sessions = new Map<string, Session>();
    const held = new HoldSlots(options.heldHandshakes);
    const context = { ...shared, ...options, records: this.#records };
    const handshake = new Handshake({
      ...shared,
      ...options,
      held,
      log,
      locator,
      ephemeral,
      records: this.#records,
      inbox: pods.inbox,
      processId,
      context,
      sessions,
    });
    const commands = new Commands({ ...shared, ...options, log, locator, ephemeral, publisher });
    const sockets = new SocketServer({
      ...shared,
      ...options,
      http: http.server,
      path: options.socketPath,
      handshake,
      held,
      commands,
      sessions,
      ephemeral,
      inbox: pods.inbox,
      meter,
    });
    this.#parts = { http, sockets, ephemeral };
    pods.connection.on('ready', () => sockets.onRedisBack());
    await ephemeral.start();
    await ephemeral.hearSelf(processId);
    await this.#hub.preload(PRELOAD_ENTRIES);
    await http.start();
    await sockets.start();
  }

  /** @throws {FatalError} when the port can't be bound */
  async listen(): Promise<void> {
    await this.#parts?.http.listen();
  }

  async drain(spreadMs: number, signal: AbortSignal): Promise<void> {
    await this.#parts?.sockets.drain(spreadMs, signal);
    // whoever was told last is on its way to another pod, and isn't gone
    await this.options.presence.settle(spreadMs, signal);
  }

  protected async onStop(): Promise<void> {
    if (!this.#parts) return;
    const { http, sockets, ephemeral } = this.#parts;
    await sockets.stop();
    // no socket waits any more; back ends hear what became of their calls while they can still be answered
    this.options.rpc.stopCalling();
    await http.stop();
    await ephemeral.stop();
    // records of sockets that are gone stay good when this process is no longer among the others
    await this.#records.markDead(this.options.processId).catch(() => {});
  }
}
