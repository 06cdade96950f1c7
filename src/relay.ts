import { randomBytes } from 'node:crypto';
import {
  Admission,
  ApiKeys,
  Authenticator,
  DeviceSessions,
  DeviceTokens,
  isAllowed,
  type Notice,
  StoredKeys,
  TokenVerifier,
} from './admission/index.js';
import type { RelayConfig } from './config.js';
import { FatalError } from './core/errors.js';
import type { Logger } from './core/ports.js';
import { Service } from './core/service.js';
import { sleep, within } from './core/sleep.js';
import { Gateway } from './gateway/index.js';
import { EventLog } from './log/index.js';
import { DependencyCheck, OpsListener, type PrometheusMeter, Readiness } from './ops/index.js';
import { Pods } from './pods/index.js';
import type { Database } from './postgres/database.js';
import { Postgres } from './postgres/pool.js';
import * as postgres from './postgres/serving.js';
import { Presence } from './presence/index.js';
import { Connection } from './redis/connect.js';
import { Keys } from './redis/keys.js';
import { type RedisFacts, untilServing } from './redis/serving.js';
import { Rpc } from './rpc/index.js';
import { VERSION } from './version.js';
import { EVENTS_TOPIC } from './wire/event.js';

const GATE_MS = 10_000;
/** From the first answer of Redis to a relay that serves; a lease of a former process (3.5 s) runs out within it. */
const CLIMB_MS = 30_000;
/** So long up, and Redis counts as back. */
const STEADY_MS = 1000;
/** Of the drain, what passes before clients are told: balancers must have seen that this pod is not ready. */
const ROUTING_SHARE = 1 / 3;
const ROUTING_MAX_MS = 5000;

export interface RelayOptions {
  /** `redisUrl`, `jwtSecret` and `apiKeys` as they are used, the embedded ones too. */
  readonly config: RelayConfig;
  readonly redisUrl: string;
  /** A private one, with its schema, in place of `databaseUrl`; whoever made it closes it after the relay has stopped. */
  readonly database?: Database | undefined;
  /** Everything is this process's own: nobody routes to it, so it ends at once. */
  readonly isEmbedded: boolean;
  readonly logger: Logger;
  readonly meter: PrometheusMeter;
  /** The process must end: another one has its place. Transports are closed already. */
  readonly onFatal: (message: string) => void;
}

/** The relay: it knows every room, starts them from the ground up and stops them from the top down. */
export class Relay extends Service {
  readonly readiness: Readiness;
  readonly #processId = randomBytes(9).toString('base64url');
  readonly #keys: Keys;
  readonly #pods: Pods;
  readonly #presence: Presence;
  readonly #log: EventLog;
  readonly #gateway: Gateway;
  readonly #rpc: Rpc;
  readonly #postgres: Postgres | undefined;
  readonly #admission: Admission;
  readonly #devices: DeviceSessions;
  readonly #storedKeys: StoredKeys | undefined;
  readonly #deviceTokens: DeviceTokens | undefined;
  readonly #ops: OpsListener;
  readonly #probe: Connection;
  readonly #gate = new AbortController();
  /** Aborted by whoever can't wait for the drain. */
  readonly #hurry = new AbortController();
  #climbing: Promise<void> = Promise.resolve();
  #isServing = false;
  #isFenced = false;

  constructor(private readonly options: RelayOptions) {
    super();
    const { config, redisUrl: url, logger, meter } = options;
    const processId = this.#processId;
    this.#keys = new Keys(config.keyPrefix);
    if (config.databaseUrl !== undefined)
      this.#postgres = new Postgres({
        url: config.databaseUrl,
        name: `holdfast:${config.pod}`,
        size: config.admissionPool,
        logger,
      });
    const database = this.#postgres ?? options.database;
    this.readiness = new Readiness(meter);
    const shared = { url, keys: this.#keys, pod: config.pod, processId, logger, meter };
    const onFenced = (): void => this.#fenced();
    this.#pods = new Pods({
      ...shared,
      handOvers: [
        (dead) => this.#gateway.buryProcess(dead),
        (dead) => this.#rpc.buryProcess(dead),
        (dead) => this.#presence.bury(dead),
        (dead) => this.#devices.buryProcess(dead),
      ],
      onReturn: () => {
        void this.#gateway.returnToLife();
        void this.#rpc.returnToLife();
        this.#presence.returnToLife();
        this.#devices.returnToLife();
      },
      onLost: onFenced,
    });
    this.#rpc = new Rpc({
      ...shared,
      pods: this.#pods,
      isStock: (target) => isAllowed(config.rpcStockMethods, target),
      settings: {
        graceMs: config.rpcGraceMs,
        absentGraceMs: config.rpcAbsentGraceMs,
        maxQueued: config.rpcMaxQueued,
        inFlight: config.rpcInFlight,
        maxPayloadBytes: config.rpcMaxPayloadBytes,
      },
    });
    this.#presence = new Presence({
      ...shared,
      connection: this.#pods.connection,
      methodsOf: async (tenant, user) => (await this.#rpc.methodsOf(tenant, user)).map(({ method }) => method),
    });
    this.#admission = new Admission({
      database,
      isOpen: config.admissionOnError === 'open',
      isStrict: config.admissionStrict,
      revalidateMs: config.admissionRevalidateMs,
      onNotice: (notice) => this.#noticed(notice),
      onUnheard: () => {
        this.#storedKeys?.forgetAll();
        this.#deviceTokens?.forgetAll();
      },
      logger,
      meter,
    });
    const isFresh = (): boolean => this.#admission.isHeard;
    this.#storedKeys = database && new StoredKeys({ database, isFresh, logger });
    this.#deviceTokens = database && new DeviceTokens({ database, isFresh, logger });
    this.#devices = new DeviceSessions({
      ...shared,
      connection: this.#pods.connection,
      inbox: this.#pods.inbox,
      mayJudge: () => this.#pods.mayJudge,
      isConnected: (id) => this.#gateway.isConnected(id),
      settings: {
        settleMs: config.settleMs,
        loopMs: config.loopMs,
        flapMax: config.flapMax,
        flapMs: config.flapMs,
        reconnectMax: config.reconnectMax,
        reconnectMs: config.reconnectMs,
        warmupMax: config.warmupMax,
        warmupMs: config.warmupMs,
        connectsPerSecond: config.connectsPerSecond,
      },
    });
    this.#gateway = new Gateway({
      ...config,
      ...shared,
      pods: this.#pods,
      presence: this.#presence,
      rpc: this.#rpc,
      admission: this.#admission,
      devices: this.#devices,
      authenticator: new Authenticator({
        verifier: new TokenVerifier({
          secret: config.jwtSecret,
          publicKey: config.jwtPublicKey,
          jwksUrl: config.jwtJwksUrl,
          algorithm: config.jwtAlgorithm,
        }),
        deviceTokens: this.#deviceTokens,
      }),
      apiKeys: new ApiKeys(config.apiKeys, this.#storedKeys),
      database,
      version: VERSION,
      onFenced,
    });
    this.#log = new EventLog({
      ...shared,
      topic: EVENTS_TOPIC,
      partitions: config.partitions,
      maxEntries: config.logMaxEntries,
      maxBytes: config.logMaxBytes,
      maxAgeMs: config.logMaxAgeMs,
      trimMs: config.logTrimMs,
      reapMs: config.logReapMs,
      keepMs: config.recoveryWindowMs + config.positionHeartbeatMs,
      idWindowMs: config.logIdWindowMs,
      handler: this.#gateway.readerHandler,
    });
    this.#probe = new Connection({ url, name: `holdfast:${config.pod}:status`, silenceMs: 1000 });
    this.#ops = new OpsListener({
      host: config.opsHost,
      port: config.opsPort,
      identity: { version: VERSION, pod: config.pod, processId },
      readiness: this.readiness,
      meter,
      dependencies: new DependencyCheck({
        checks: { redis: () => this.#ping(), ...(database && { postgres: () => database.ping() }) },
        meter,
      }),
      status: () => ({ connections: this.#gateway.connectionCount, log: this.#describeLog() }),
      logger,
    });
  }

  get port(): number {
    return this.#gateway.port;
  }

  get opsPort(): number {
    return this.#ops.port;
  }

  /**
   * Comes up from the ground; the public listener binds immediately before the private one, which binds last: binding is the
   * only signal that the relay has started.
   *
   * @throws {FatalError} in one line
   */
  protected async onStart(): Promise<void> {
    this.#climbing = this.#climb();
    try {
      await this.#climbing;
    } catch (error) {
      if (!this.#gate.signal.aborted) await this.#stopRooms();
      throw error;
    }
  }

  async #climb(): Promise<void> {
    const { redisUrl: url, logger } = this.options;
    const facts = await untilServing({
      url,
      probeKey: this.#keys.selfTest(this.#processId),
      withinMs: GATE_MS,
      onRefused: (code) => logger.warn({ event: 'redis_refuses', code }, 'Redis answers but refuses; waiting for it'),
      signal: this.#gate.signal,
    });
    this.#warn(facts);
    await this.#climbPostgres();
    const steps = [
      () => this.#pods.start(),
      () => this.#pods.hearSelf(),
      () => this.#log.start(),
      () => this.#rpc.start(),
      () => this.#presence.start(),
      () => this.#admission.start(),
      () => this.#devices.start(),
      async () => this.#gateway.attach(this.#log),
      () => this.#gateway.start(),
      async () => this.#log.beginReading(),
      () => this.#gateway.listen(),
      () => this.#ops.start(),
    ];
    const deadline = performance.now() + CLIMB_MS;
    for (const step of steps) {
      if (this.#gate.signal.aborted) throw new FatalError('stopped while starting');
      const isDone = await within(
        deadline - performance.now(),
        step().then(() => true),
      );
      if (!isDone) throw new FatalError(`Redis at ${new URL(url).host} stopped answering while the relay started`);
    }
    this.#watchRedis();
    this.#isServing = true;
  }

  async #climbPostgres(): Promise<void> {
    const { config, logger } = this.options;
    if (config.databaseUrl === undefined) return;
    const names = await postgres.untilServing({
      url: config.databaseUrl,
      mayMigrate: config.migrate,
      withinMs: GATE_MS,
      onRefused: (code, reason) =>
        logger.warn({ event: 'postgres_refuses', code, reason }, 'Postgres answers but refuses; waiting for it'),
      onWaiting: () => logger.info({ event: 'migration_waits' }, 'another process migrates; waiting for it'),
      signal: this.#gate.signal,
    });
    if (names.length > 0) logger.info({ event: 'migrated', names }, 'the schema of Postgres was brought up to date');
  }

  /** What is kept of keys and tokens holds no longer. */
  #noticed([kind, ...parts]: Notice): void {
    const [first = '', user = '', device = ''] = parts;
    if (kind === 'key') this.#storedKeys?.forget(first);
    if (kind === 'device') this.#deviceTokens?.forget(first, user, device);
  }

  /** Drains if it was up, then stops everything, also when Redis is dead. */
  protected async onStop(): Promise<void> {
    this.readiness.startDraining();
    this.#gate.abort();
    // a step that is under way ends by itself, or because its room is stopped
    await within(1000, this.#climbing).catch(() => {});
    if (this.#isServing) await this.#drain().catch((error: unknown) => this.#stopFailed('drain', error));
    await this.#stopRooms();
  }

  async #drain(): Promise<void> {
    const { config, isEmbedded, logger } = this.options;
    const drainMs = isEmbedded ? 0 : config.drainMs;
    const routingMs = Math.min(drainMs * ROUTING_SHARE, ROUTING_MAX_MS);
    this.#devices.noteDrain();
    logger.info({ event: 'draining', drainMs }, 'not ready any more; clients will be told to go elsewhere');
    await sleep(routingMs, this.#hurry.signal);
    await this.#gateway.drain(this.#hurry.signal.aborted ? 0 : drainMs - routingMs, this.#hurry.signal);
  }

  /** From the top down. One that fails or hangs holds up no other. */
  async #stopRooms(): Promise<void> {
    const rooms: readonly (readonly [string, Service, number])[] = [
      ['gateway', this.#gateway, 8000],
      ['devices', this.#devices, 2000],
      ['admission', this.#admission, 2000],
      ['presence', this.#presence, 3000],
      ['rpc', this.#rpc, 3000],
      ['log', this.#log, 4000],
      ['pods', this.#pods, 2000],
      ['ops', this.#ops, 1000],
    ];
    for (const [name, room, withinMs] of rooms) {
      await within(withinMs, room.stop()).catch((error: unknown) => this.#stopFailed(name, error));
      // it can't say that it leaves: its lease runs out, and who buries it does that
      const mustBeBuried =
        (room === this.#presence && !this.#presence.hasLeft) || (room === this.#rpc && !this.#rpc.hasLeft);
      if (mustBeBuried) this.#pods.connection.close();
    }
    this.#probe.close();
    await within(1000, this.#postgres?.close() ?? Promise.resolve()).catch((error: unknown) =>
      this.#stopFailed('postgres', error),
    );
  }

  #stopFailed(room: string, error: unknown): void {
    this.options.logger.error({ event: 'stop_failed', room, err: error }, 'not everything could be stopped in order');
  }

  /** Ends a drain that is under way: clients are told now. */
  hurry(): void {
    this.#hurry.abort();
  }

  /** The lease and the readers both notice it; the first says it. */
  #fenced(): void {
    if (this.#isFenced) return;
    this.#isFenced = true;
    this.#gateway.drain(0, AbortSignal.abort()).catch((error: unknown) => this.#stopFailed('drain', error));
    this.options.onFatal(`another process runs as pod ${JSON.stringify(this.options.config.pod)}: this one ends`);
  }

  /** One line per change. The pods' connection asks twice a second, so it also notices a Redis that hangs. */
  #watchRedis(): void {
    const { logger } = this.options;
    const { connection } = this.#pods;
    let downSince: number | undefined;
    let steady: NodeJS.Timeout | undefined;
    connection.on('down', () => {
      clearTimeout(steady);
      if (connection.isClosed || downSince !== undefined) return;
      downSince = performance.now();
      logger.warn(
        { event: 'redis_down', reason: connection.lastError || 'the connection was closed' },
        'Redis does not answer: sockets stay, and what they publish is refused until it is back',
      );
    });
    connection.on('ready', () => {
      if (downSince === undefined) return;
      const seconds = Math.round((performance.now() - downSince) / 100) / 10;
      // a master that was demoted is left and found again twice a second
      steady = setTimeout(() => {
        downSince = undefined;
        logger.info({ event: 'redis_up', seconds }, 'Redis is back');
      }, STEADY_MS).unref();
    });
  }

  async #ping(): Promise<void> {
    if (!this.#probe.isUp) throw new Error(this.#probe.lastError || 'not connected');
    await this.#probe.redis.ping();
  }

  #describeLog(): object {
    const count = this.#log.partitionCount;
    return {
      partitions: Array.from({ length: count }, (_, index) => this.#log.dispatched(index)),
      stallSeconds: this.#log.stallMs / 1000,
    };
  }

  #warn(facts: RedisFacts): void {
    const { logger } = this.options;
    if (facts.evictionPolicy !== undefined && facts.evictionPolicy !== 'noeviction')
      logger.warn(
        { event: 'redis_evicts', policy: facts.evictionPolicy },
        'Redis may evict the log: set maxmemory-policy noeviction',
      );
    if ((facts.streamNodeMaxBytes ?? 0) > 65_536 || (facts.streamNodeMaxEntries ?? 0) > 1000)
      logger.warn({ event: 'redis_stream_nodes' }, 'stream-node-max-* is large: trimming frees memory late');
  }
}
