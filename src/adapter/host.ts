import { randomBytes } from 'node:crypto';
import { silentMeter } from '../core/ports.js';
import { Service } from '../core/service.js';
import { within } from '../core/sleep.js';
import { Hub } from '../gateway/hub.js';
import { Locator } from '../gateway/locator.js';
import { type GatewayMetrics, gatewayMetrics } from '../gateway/metrics.js';
import { ResumeRecords } from '../gateway/resume-records.js';
import { Sweep } from '../gateway/sweep.js';
import { type AppendResult, EventLog } from '../log/index.js';
import { meterOn } from '../ops/index.js';
import { type InboxMessage, Pods } from '../pods/index.js';
import type { ClientPlace } from '../redis/client-place.js';
import { Keys } from '../redis/keys.js';
import { Bridge } from './bridge.js';
import { stringify } from './codec.js';
import { type AdapterMetrics, adapterMetrics } from './metrics.js';
import type { AdapterSettings } from './options.js';
import type { AdapterSession, SessionState } from './session.js';
import { CARRIED } from './streams-format.js';
import { StreamsRequests } from './streams-requests.js';
import { Turns } from './turns.js';

const TOPIC = 'socket.io';
/** Entries that a starting process takes into memory, so that clients who come right after a deploy need no log reads. */
const PRELOAD_ENTRIES = 5000;
const POSITION_HEARTBEAT_MS = 45_000;
/** Nobody waits for an answer: under a load that Redis works off, late is better than here only. */
const BUDGET_MS = 5000;
const TRIM_MS = 10_000;
/** Each process has a group of its own, which nobody takes up again: it goes soon after it. */
const REAP_MS = 60_000;
/** The list of living processes may be that old where nothing depends on it. */
const LIVE_AGE_MS = 500;
const LIVE_MS = 1000;
/** A Redis that is not there at the start is said after that long. */
const PATIENCE_MS = 3000;
/** When a thousand clients come back, one write to Redis for several of their records is a sixth of a connect's cost. */
const SAVE_MS = 5;

/** What a namespace's adapter is to its host. */
export interface Guest {
  /** The log is open: sockets can be given a place in it. */
  onOpen(): void;
  /** Of a process: a question, an answer, a volatile event. */
  onMessage(from: string, message: Readonly<Record<string, unknown>>): void;
}

export interface HostOptions {
  readonly place: ClientPlace;
  readonly settings: AdapterSettings;
  /** Clients may resume for that long, in ms; 0 = the server doesn't recover connections. */
  readonly recoveryWindowMs: number;
}

/** What all namespaces of one Socket.IO server share: the log, its place among the processes, its sockets' records. */
export class AdapterHost extends Service {
  readonly processId = randomBytes(9).toString('base64url');
  readonly metrics: GatewayMetrics;
  readonly counts: AdapterMetrics;
  readonly hub: Hub;
  readonly log: EventLog;
  readonly locator: Locator;
  readonly records: ResumeRecords<SessionState>;
  /** To old servers, while some still run. */
  readonly bridge: Bridge | undefined;
  readonly sessions = new Map<string, AdapterSession>();
  readonly #guests = new Map<string, Guest>();
  readonly #pods: Pods;
  readonly #sweep: Sweep;
  readonly #turns: Turns[] = [];
  readonly #touched = new Set<AdapterSession>();
  readonly #ending = new Set<Promise<void>>();
  #opened: Promise<void> | undefined;
  #isOpen = false;
  #hasLeft = false;
  /** False for the rest of the turn in which others were asked for: who asks again has the same answer. */
  #mayAskAgain = true;
  #saidDown = false;
  #live: { readonly at: number; readonly asked: Promise<readonly string[]> } | undefined;
  #lastLive: readonly string[] = [];

  constructor(private readonly options: HostOptions) {
    super();
    const { place, settings, recoveryWindowMs } = options;
    const { logger, registry } = settings;
    const { processId } = this;
    const meter = registry ? meterOn(registry) : silentMeter;
    const keys = new Keys(`${place.keyPrefix}hf:${settings.streamName}:`);
    this.metrics = gatewayMetrics(meter);
    this.counts = adapterMetrics(meter);
    const shared = { url: place.address, keys, pod: processId, processId, logger, meter };
    const onLost = (): void => this.#fenced();
    this.#pods = new Pods({
      ...shared,
      handOvers: [(dead) => this.records.markDead(dead)],
      onReturn: () => void this.records.unmarkDead().catch(() => {}),
      onLost,
    });
    this.records = new ResumeRecords(this.#pods.connection, keys, processId, recoveryWindowMs);
    this.hub = new Hub({
      ringBytes: settings.ringBytes,
      slowReaderMs: settings.slowReaderMs,
      withPositions: recoveryWindowMs > 0,
      metrics: this.metrics,
      logger,
      onFenced: onLost,
      onEpoch: () => this.#sweep.resave('all'),
    });
    this.log = new EventLog({
      ...shared,
      topic: TOPIC,
      partitions: settings.streamCount,
      maxEntries: settings.maxLen,
      maxBytes: settings.maxBytes,
      maxAgeMs: settings.maxAgeMs,
      trimMs: TRIM_MS,
      reapMs: REAP_MS,
      keepMs: recoveryWindowMs + POSITION_HEARTBEAT_MS,
      idWindowMs: 120_000,
      budgetMs: BUDGET_MS,
      handler: {
        onEntry: (entry, partition) => {
          this.hub.onEntry(entry, partition);
          if (entry.header.publisher === CARRIED) this.bridge?.saw(entry.header);
        },
        onBatchEnd: (partition) => {
          const rest = this.hub.onBatchEnd(partition);
          this.#turns[partition]?.advance();
          this.bridge?.wake(partition);
          return rest;
        },
        onGap: (gap) => this.hub.onGap(gap),
        onEpoch: (turn) => this.hub.onEpoch(turn),
        onFenced: onLost,
      },
    });
    this.hub.attach(this.log);
    this.locator = new Locator(this.log, this.hub);
    if (settings.bridge)
      this.bridge = new Bridge({
        ...shared,
        keyPrefix: place.keyPrefix,
        settings: settings.bridge,
        log: this.log,
        onServerSideEmit: (namespace, args) => this.#emitEverywhere(namespace, args),
        counts: this.counts,
      });
    this.#sweep = new Sweep(this.sessions, this.hub, POSITION_HEARTBEAT_MS);
  }

  /** Positions are known, entries come. */
  get isOpen(): boolean {
    return this.#isOpen;
  }

  get isStopped(): boolean {
    return this.#hasLeft;
  }

  get recoveryWindowMs(): number {
    return this.options.recoveryWindowMs;
  }

  // --- guests

  receive(namespace: string, guest: Guest): void {
    this.#guests.set(namespace, guest);
    this.bridge?.requests.receive(namespace, guest);
    this.#opened ??= this.start().catch((error: unknown) => {
      // whoever closes it while it starts knows
      if (this.#hasLeft) return;
      this.options.settings.logger.error({ event: 'adapter_failed', err: error }, 'the adapter could not start');
    });
  }

  /** Resolves when the last one has left and all is stopped. */
  async dismiss(namespace: string, guest: Guest): Promise<void> {
    if (this.#guests.get(namespace) === guest) {
      this.#guests.delete(namespace);
      this.bridge?.requests.dismiss(namespace);
    }
    if (this.#guests.size > 0) return;
    this.#hasLeft = true;
    await this.stop();
  }

  /** Resolves when the log is open, or after `ms`. */
  async whenOpen(ms: number): Promise<boolean> {
    if (!this.#isOpen && this.#opened) await within(ms, this.#opened);
    return this.#isOpen;
  }

  protected async onStart(): Promise<void> {
    const { inbox } = this.#pods;
    inbox.on('superseded', ({ owner }) => {
      if (typeof owner === 'string') this.sessions.get(owner)?.supersede();
    });
    inbox.on('guest', (message) => this.#hand(message));
    const { connection } = this.#pods;
    connection.on('down', () => this.#sayRedis(false));
    connection.on('ready', () => this.#sayRedis(true));
    setTimeout(() => {
      if (!connection.isUp) this.#sayRedis(false);
    }, PATIENCE_MS).unref();
    await this.#pods.start();
    await this.log.start();
    await this.hub.preload(PRELOAD_ENTRIES);
    await this.bridge?.start();
    this.log.beginReading();
    for (let partition = 0; partition < this.log.partitionCount; partition++)
      this.#turns[partition] = new Turns(
        () => this.hub.dispatched(partition).offset,
        (error) => this.complain(error),
      );
    connection.on('ready', () => this.#sweep.resave('dirty'));
    if (this.recoveryWindowMs > 0) this.#sweep.start();
    this.#isOpen = true;
    for (const guest of this.#guests.values()) guest.onOpen();
  }

  protected async onStop(): Promise<void> {
    this.#isOpen = false;
    await this.bridge?.stop();
    this.#sweep.stop();
    for (const turns of this.#turns) turns.stop();
    await within(2000, Promise.all(this.#ending));
    this.hub.stop();
    await within(4000, this.log.stop());
    // records of sockets that are gone stay good when this process is no longer among the others
    await within(
      500,
      this.records.markDead(this.processId).catch(() => {}),
    );
    await within(2000, this.#pods.stop());
  }

  /** It changed: its record is saved soon, with what else changes meanwhile. */
  touch(session: AdapterSession): void {
    if (this.#touched.size === 0) setTimeout(() => this.#saveTouched(), SAVE_MS);
    this.#touched.add(session);
  }

  #saveTouched(): void {
    const sessions = [...this.#touched];
    this.#touched.clear();
    this.#pods.connection.inOneWrite(() => {
      for (const session of sessions) void session.save();
    });
  }

  /** Something that must be done before the process goes. */
  track(ending: Promise<void>): void {
    const tracked = ending.finally(() => this.#ending.delete(tracked));
    this.#ending.add(tracked);
  }

  // --- the log

  partitionOf(namespace: string): number {
    return this.#isOpen ? this.log.partitionOf(namespace) : 0;
  }

  /**
   * Resolves when Redis has accepted the entry.
   *
   * @throws {RelayError} `unavailable`, `overloaded`
   */
  append(namespace: string, body: string, attachments: readonly Buffer[]): Promise<AppendResult> {
    return this.log.append(this.log.partitionOf(namespace), { body, attachments });
  }

  /** Nothing that this process knows of has still to be dispatched. */
  isUpToDate(namespace: string): boolean {
    if (!this.#isOpen) return true;
    const partition = this.partitionOf(namespace);
    if (this.log.whenAnswered(partition)) return false;
    return (
      this.#turns[partition]?.isIdle === true &&
      this.log.newest(partition).offset <= this.hub.dispatched(partition).offset
    );
  }

  /** Runs it when what this process has appended up to now was dispatched here, or after a second. */
  afterOwn(namespace: string, run: () => void): void {
    const partition = this.partitionOf(namespace);
    const wait = (): void => this.after(namespace, this.log.newest(partition), run);
    const answered = this.#isOpen ? this.log.whenAnswered(partition) : undefined;
    if (answered) void within(1000, answered).then(wait);
    else if (this.#isOpen) wait();
    else this.#guarded(run);
  }

  /** Runs it when that entry was dispatched here, or after a second. What it throws is the application's. */
  after(namespace: string, place: { readonly epoch: string; readonly offset: number }, run: () => void): void {
    const partition = this.partitionOf(namespace);
    const turns = this.#turns[partition];
    if (this.#isOpen && turns && place.epoch === this.hub.dispatched(partition).epoch) turns.after(place.offset, run);
    else this.#guarded(run);
  }

  #guarded(run: () => void): void {
    try {
      run();
    } catch (error) {
      this.complain(error);
    }
  }

  /** What others must have dispatched before they look at a message of this process. */
  newestPlace(namespace: string): object {
    if (!this.#isOpen) return {};
    const { epoch, offset } = this.log.newest(this.partitionOf(namespace));
    return { epoch, offset };
  }

  // --- other processes

  /** The others that live. Rejects when Redis can't say. */
  async others(): Promise<readonly string[]> {
    return (await this.#ask()).filter((id) => id !== this.processId);
  }

  /** All that live, as far as it is known. */
  async count(): Promise<number> {
    const live = await this.#ask().catch(() => this.#lastLive);
    return Math.max(1, live.length);
  }

  /** As `others`, but half a second old. */
  async recentOthers(): Promise<readonly string[]> {
    const isRecent = this.#live && performance.now() - this.#live.at < LIVE_AGE_MS;
    const live = isRecent ? await this.#live?.asked.catch(() => undefined) : undefined;
    return live ? live.filter((id) => id !== this.processId) : this.others();
  }

  /** Questions of one turn of the loop have one answer: who counts and who is asked are the same. */
  #ask(): Promise<readonly string[]> {
    const now = performance.now();
    if (this.#live && !this.#mayAskAgain) return this.#live.asked;
    this.#mayAskAgain = false;
    queueMicrotask(() => {
      this.#mayAskAgain = true;
    });
    const asked = within(LIVE_MS, this.#isOpen ? this.#pods.live() : Promise.reject(new Error('not open'))).then(
      (live) => {
        if (!live) throw new Error('Redis does not answer');
        this.#lastLive = live;
        return live;
      },
    );
    asked.catch(() => {});
    this.#live = { at: now, asked };
    return asked;
  }

  /** False: that process is not there (any more). */
  async send(process: string, namespace: string, message: object): Promise<boolean> {
    const old = StreamsRequests.nameOf(process);
    if (old !== undefined) {
      await this.bridge?.requests.answer(old, namespace, message as Record<string, unknown>);
      return true;
    }
    const from = this.processId;
    return this.#pods.inbox.send(process, { type: 'guest', namespace, from, ...message });
  }

  /** What an emitter asks of all servers reached this one only. */
  #emitEverywhere(namespace: string, args: readonly unknown[]): void {
    const message = { kind: 'emit', data: stringify(args) };
    this.#guests.get(namespace)?.onMessage(this.processId, message);
    this.others()
      .then((others) => Promise.all(others.map((process) => this.send(process, namespace, message))))
      .catch(() => this.counts.requests.inc({ outcome: 'unavailable' }));
  }

  /** Something of the application's threw where nobody could catch it. */
  complain(error: unknown): void {
    this.options.settings.logger.error(
      { event: 'adapter_turn_failed', err: error },
      'a handler of the application threw',
    );
  }

  /** The old connection of a session that was taken over. */
  endElsewhere(owner: string): void {
    const process = this.records.processOf(owner);
    if (process === this.processId) this.sessions.get(owner)?.supersede();
    else this.#pods.inbox.send(process, { type: 'superseded', owner }).catch(() => false);
  }

  #hand(message: InboxMessage): void {
    const { namespace, from, request } = message;
    if (typeof namespace !== 'string' || typeof from !== 'string') return;
    const guest = this.#guests.get(namespace);
    if (guest) return guest.onMessage(from, message);
    // nobody is here to answer, and whoever asks need not wait
    if (typeof request === 'string') this.send(from, namespace, { kind: 'absent', answers: request }).catch(() => {});
  }

  #sayRedis(isUp: boolean): void {
    if (this.#hasLeft || this.#saidDown === !isUp) return;
    this.#saidDown = !isUp;
    const { logger } = this.options.settings;
    if (isUp) logger.info({ event: 'redis_up' }, 'Redis is back');
    else
      logger.warn(
        { event: 'redis_down' },
        `Redis does not answer, and broadcasts leave no server: ${this.#pods.connection.lastError || 'connection lost'}`,
      );
  }

  #fenced(): void {
    this.options.settings.logger.error(
      { event: 'adapter_fenced' },
      'another process has the place of this one: its connections are closed',
    );
    for (const subscriber of this.hub.subscribers()) subscriber.outbox.closeTransport();
  }
}
