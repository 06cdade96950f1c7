import { RelayError } from '../core/errors.js';
import type { Logger, Meter } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import { LEASE_MS, type Pods } from '../pods/index.js';
import { learnTime, RedisClock } from '../redis/clock.js';
import { Connection, type RedisAddress } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript } from '../redis/script.js';
import { scoped } from '../wire/names.js';
import type { CallName, CallRequest } from './call-request.js';
import { CALLER_SCRIPTS, Caller } from './caller.js';
import type { Daemon, Dedupe } from './daemon.js';
import { rpcMetrics } from './metrics.js';
import type { Outcome } from './outcome.js';
import { OWNER_SCRIPTS, Owner } from './owner.js';
import { type KeptRegistration, REGISTRATION_SCRIPTS, Registrations } from './registrations.js';
import type { RpcSettings } from './settings.js';
import { STOCK_SCRIPTS, StockQueues } from './stock-queues.js';

const METHODS = loadScript(import.meta.url, 'methods');

const SILENCE_MS = 2500;
const CHECK_MS = 250;

export interface RpcOptions {
  readonly url: RedisAddress;
  readonly keys: Keys;
  readonly pod: string;
  readonly processId: string;
  readonly pods: Pods;
  readonly settings: RpcSettings;
  /** Whether stock BullMQ Workers serve a method, named `<tenant>/<user>/<method>`, each part escaped. Default: none. */
  readonly isStock?: (target: string) => boolean;
  readonly logger: Logger;
  readonly meter: Meter;
}

export interface RetireOptions {
  readonly signal?: AbortSignal | undefined;
  /** It won't come back. */
  readonly isFinal?: boolean;
  /** Also for requests that another one may have. */
  readonly waitsForAll?: boolean;
}

/** A method, and who serves it. */
export interface MethodState {
  readonly method: string;
  readonly state: 'live' | 'away';
  /** Where it is connected; only of a live one. */
  readonly pod?: string;
  /** Redis ms; only of one that is away. */
  readonly since?: number;
  /** Calls that wait, and calls that are in work. */
  readonly waiting: number;
  readonly active: number;
}

/** Durable calls: of this process's callers to daemons anywhere, and of callers anywhere to this process's daemons. */
export class Rpc extends Service {
  readonly #connection: Connection;
  readonly #clock = new RedisClock();
  readonly #registrations: Registrations;
  readonly #owner: Owner;
  readonly #caller: Caller;
  readonly #stock: StockQueues;
  readonly #daemons = new Set<Daemon>();
  /** Run id, replication id and role of the Redis that has our registrations. */
  #redisIs = '';
  #isStopping = false;

  constructor(private readonly options: RpcOptions) {
    super();
    const { url, keys, pod, processId, settings, logger, meter, pods } = options;
    const metrics = rpcMetrics(meter);
    this.#connection = new Connection({
      url,
      name: `holdfast:${pod}:rpc`,
      silenceMs: SILENCE_MS,
      joinsWrites: true,
      opensLater: true,
    });
    this.#connection.on('down', () => this.#clock.doubt());
    this.#connection.on('ready', () => void this.#checkRedis());
    const shared = { connection: this.#connection, clock: this.#clock, keys, processId, settings, metrics, logger };
    this.#registrations = new Registrations({
      ...shared,
      onWork: (registration) => this.#owner.pick(registration),
      onEnded: (scope, id, segment) => this.#caller.onEnded(scope, id, segment),
    });
    this.#owner = new Owner({
      ...shared,
      registrations: this.#registrations,
      onAnswer: (scope, id, outcome) => this.#caller.settle(scope, id, outcome),
      onEnded: (scope, id, segment) => this.#caller.onEnded(scope, id, segment),
    });
    this.#stock = new StockQueues({
      url,
      keys,
      pod,
      processId,
      logger,
      commands: this.#connection,
      isStock: options.isStock ?? (() => false),
      onEnd: (scope, id, outcome) => this.#caller.settle(scope, id, outcome),
    });
    this.#caller = new Caller({
      ...shared,
      pods,
      stock: this.#stock,
      onWork: (scope, segment) => this.#owner.ring(scope, segment),
      onGiven: (job) => this.#owner.take(job),
    });
    meter.gauge({ name: 'rpc_inflight', help: 'Calls that this process waits for.' }, () => this.pendingCount);
    meter.gauge(
      { name: 'rpc_requests_inflight', help: 'Requests that daemons of this process have.' },
      () => this.#owner.inFlightCount,
    );
    meter.gauge(
      { name: 'rpc_registrations', help: 'Methods that daemons of this process serve.' },
      () => this.#registrations.count,
    );
    const { inbox } = pods;
    inbox.on('rpc-ring', ({ scope, method }) => this.#owner.ring(String(scope), String(method)));
    inbox.on('rpc-job', ({ scope, method, id, fence, daemon, deadline, notAfter, idempotent, params }) =>
      this.#owner.take({
        scope: String(scope),
        segment: String(method),
        id: String(id),
        fence: String(fence),
        daemon: String(daemon),
        deadline: Number(deadline),
        notAfter: Number(notAfter),
        isIdempotent: idempotent === true,
        params,
      }),
    );
    inbox.on('rpc-check', ({ scope, method, id, token }) =>
      this.#owner.check(String(scope), String(method), String(id), String(token)),
    );
    inbox.on('rpc-answer', (message) => this.#caller.onAnswer(message));
    inbox.on('rpc-replaced', ({ scope, method, daemon, fence }) =>
      this.#registrations.onReplaced(String(scope), String(method), String(daemon), String(fence)),
    );
    inbox.on('rpc-give-up', ({ scope, id, code }) =>
      this.#owner.giveUp(String(scope), String(id), code === 'timeout' ? 'timeout' : 'cancelled'),
    );
  }

  /** Calls that this process waits for. */
  get pendingCount(): number {
    return this.#caller.pendingCount;
  }

  // --- calls

  /** Never rejects; the outcome comes by the call's deadline and half a second. */
  call(request: CallRequest): Promise<Outcome> {
    return this.#caller.call(request);
  }

  /** The outcome of a call made before, by whichever process; `bad_request` if nobody knows of it. */
  attach(name: CallName): Promise<Outcome> {
    return this.#caller.attach(name);
  }

  /**
   * False: Redis could not be told.
   *
   * @param isForFuture one that is not known yet is refused when it comes, for a minute: that takes a key
   */
  cancel(name: CallName, isForFuture = true): Promise<boolean> {
    return this.#caller.cancel(name, isForFuture);
  }

  /** Whoever waits here is told `unavailable`: the calls go on, and are there for whoever attaches to them elsewhere. */
  stopCalling(): void {
    this.#caller.stop();
  }

  // --- daemons

  /**
   * The newest registration of a method wins. `'late'`: Redis did not answer within 2 s; it follows if the daemon stays, which is
   * told so. `'retired'`: the daemon is sent elsewhere.
   *
   * @param unlessNewerThan a fence from `kept`: whoever registered since then stays
   */
  register(
    daemon: Daemon,
    method: string,
    dedupe: Dedupe,
    unlessNewerThan?: string,
  ): Promise<'registered' | 'lost' | 'late' | 'retired'> {
    if (this.#owner.isRetired(daemon) || this.#isStopping) return Promise.resolve('retired');
    this.#daemons.add(daemon);
    return this.#registrations.register(daemon, method, dedupe, unlessNewerThan);
  }

  /** @param inherited the fence of one that it had before it came here */
  async unregister(daemon: Daemon, method: string, inherited?: string): Promise<void> {
    await this.#registrations.release(daemon, 'gone', method, inherited);
  }

  /** For a resume record. */
  kept(daemon: Daemon): readonly KeptRegistration[] {
    return this.#registrations.kept(daemon);
  }

  /** The connection is gone. `isFinal`: it left on purpose, and calls of its methods fail at once. */
  async leave(daemon: Daemon, isFinal: boolean): Promise<void> {
    if (!this.#daemons.delete(daemon)) return;
    const released = this.#registrations.release(daemon, isFinal ? 'gone' : 'away');
    this.#owner.letGo(daemon);
    await released;
  }

  /**
   * What somebody has registered, by whichever process.
   *
   * @throws {RelayError} `unavailable`
   */
  async methodsOf(tenant: string, user: string): Promise<readonly MethodState[]> {
    const { keys, settings, pods } = this.options;
    const { redis } = this.#connection;
    const base = keys.rpc(scoped(tenant, user));
    const [flat, names, leases] = await Promise.all([
      this.#connection.run(METHODS, [`${base}@reg`], [base]) as Promise<(string | number)[]>,
      redis.hgetall(keys.podNames),
      redis.zrange(keys.processes, 0, '-1', 'WITHSCORES'),
    ]).catch((cause: unknown) => {
      throw new RelayError('unavailable', 'the registry cannot be read', { cause });
    });
    const now = this.#clock.at();
    const podOf = new Map(Object.entries(names).map(([pod, process]) => [process, pod]));
    const methods: MethodState[] = [];
    for (let at = 0; at < flat.length; at += 4) {
      const [segment, entry, waiting, active] = flat.slice(at, at + 4) as [string, string, number, number];
      const [, process = '', rest] = entry.split('|');
      const counts = { method: decodeURIComponent(segment), waiting, active };
      const ends = Number(leases[leases.indexOf(process) + 1] ?? Number.NaN);
      const since = process === '-' ? Number(rest) : pods.mayJudge && ends < now ? ends - LEASE_MS : undefined;
      const pod = podOf.get(process);
      if (since === undefined) methods.push({ ...counts, state: 'live', ...(pod !== undefined && { pod }) });
      else if (since + settings.graceMs > now) methods.push({ ...counts, state: 'away', since });
    }
    return methods.sort((a, b) => (a.method < b.method ? -1 : 1));
  }

  // --- life

  /** Redis knows that nothing of this process serves methods any more. If not, others must find it dead. */
  get hasLeft(): boolean {
    return this.#registrations.hasLeft;
  }

  /** For the reaper: calls of that process's daemons wait for their return. */
  async buryProcess(processId: string): Promise<void> {
    const ends = await this.#connection.redis.zscore(this.options.keys.processes, processId);
    await this.#registrations.bury(processId, ends === null ? this.#clock.at() : Number(ends) - LEASE_MS);
  }

  /** This process was taken for dead, and isn't. */
  async returnToLife(): Promise<void> {
    await this.#registrations.reassertAll();
  }

  /**
   * A daemon is about to be sent elsewhere: it gets nothing more, and is let go at once if nobody would miss what it has in work,
   * else when it has answered, or at `until` (monotonic ms). Its transport can be closed then.
   */
  async retire(
    daemon: Daemon,
    until: number,
    { signal, isFinal = false, waitsForAll = false }: RetireOptions = {},
  ): Promise<void> {
    this.#owner.retire(daemon);
    while (this.#owner.isBusy(daemon, waitsForAll) && performance.now() < until && !signal?.aborted)
      await sleep(10, signal);
    await within(1000, this.leave(daemon, isFinal));
  }

  protected async onStart(): Promise<void> {
    const connection = this.#connection;
    connection.open();
    while (!(await connection.whenUp(500))) if (connection.isClosed) throw new Error('stopped while starting');
    // what is not known there would be sent twice when it is first used
    for (const script of [...CALLER_SCRIPTS, ...OWNER_SCRIPTS, ...REGISTRATION_SCRIPTS, ...STOCK_SCRIPTS, METHODS])
      await connection.redis.script('LOAD', script.source);
    if (this.#isStopping) throw new Error('stopped while starting');
    await this.#registrations.start();
    await this.#stock.start();
  }

  protected async onStop(): Promise<void> {
    this.#isStopping = true;
    await within(1500, Promise.all([...this.#daemons].map((daemon) => this.leave(daemon, false))));
    await this.#registrations.stop();
    await this.#stock.stop();
    this.#owner.stop();
    this.#caller.stop();
    this.#connection.close();
  }

  /** Another Redis may have lost registrations while our lease survives. */
  async #checkRedis(): Promise<void> {
    for (let tries = 0; tries < 20; tries++) {
      try {
        await learnTime(this.#connection, this.#clock);
        const info = await this.#connection.redis.info();
        const facts = ['run_id', 'master_replid', 'role'].map(
          (name) => new RegExp(`^${name}:(.*)$`, 'm').exec(info)?.[1],
        );
        const is = facts.join(' ').trim();
        if (this.#redisIs !== '' && is !== this.#redisIs) await this.#registrations.reassertAll();
        this.#redisIs = is;
        return;
      } catch {
        if (!this.#connection.isUp) return;
        await sleep(CHECK_MS);
      }
    }
  }
}
