import { RelayError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import type { RedisClock } from '../redis/clock.js';
import type { Connection } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript, type Script } from '../redis/script.js';
import { scoped } from '../wire/names.js';
import { segmentOf } from './call-request.js';
import { type Daemon, type Dedupe, instanceOf } from './daemon.js';
import type { RpcMetrics } from './metrics.js';
import { BUDGET_MS, KEEP_MS, MAX_TIMEOUT_MS, type RpcSettings } from './settings.js';

const REGISTER = loadScript(import.meta.url, 'register', ['common']);
const RELEASE = loadScript(import.meta.url, 'release', ['common']);
const BURY = loadScript(import.meta.url, 'bury', ['common']);

export const REGISTRATION_SCRIPTS: readonly Script[] = [REGISTER, RELEASE, BURY];

/** A full round of the sweep takes at least that long. */
const ROUND_MS = 8000;
const TICK_MS = 250;
/** Scopes that one tick compares with Redis at most. */
const MOST_PER_TICK = 500;

/** That a daemon of this process is the worker of a method. */
export interface Registration {
  readonly daemon: Daemon;
  readonly scope: string;
  readonly method: string;
  readonly segment: string;
  readonly instance: string;
  /** What Redis gave it; '' until Redis has answered. */
  fence: string;
  /** It left before Redis had answered. */
  left?: 'away' | 'gone';
  /** A call came before Redis had answered. */
  isRung: boolean;
  isPicking: boolean;
  mustPickAgain: boolean;
}

export interface RegistrationOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly processId: string;
  readonly settings: RpcSettings;
  readonly clock: RedisClock;
  readonly metrics: RpcMetrics;
  readonly logger: Logger;
  /** Jobs wait, or may. */
  readonly onWork: (registration: Registration) => void;
  /** Calls of this process that ended because their worker left. */
  readonly onEnded: (scope: string, id: string, segment: string) => void;
}

/** A registration as a resume record keeps it: method, dedupe, fence. */
export type KeptRegistration = readonly [method: string, dedupe: Dedupe, fence: string];

type Registered = 'registered' | 'lost' | 'late';

interface Wanted {
  readonly registration: Registration;
  /** Only if nobody newer has it. */
  readonly unlessNewerThan: string;
  readonly answer: (outcome: Registered) => void;
}

/** What this process has registered, and its part of the registry in Redis. A registration lives as long as its connection. */
export class Registrations extends Service {
  readonly #byDaemon = new Map<string, Map<string, Registration>>();
  /** The newest of each method here that Redis knows of. */
  readonly #byTarget = new Map<string, Registration>();
  /** Those that it has not answered yet. */
  readonly #registering = new Map<string, Registration>();
  readonly #scopes = new Map<string, Set<Registration>>();
  readonly #wanted = new Map<Daemon, Wanted[]>();
  /** Releases that Redis has not confirmed. */
  readonly #owed = new Map<
    string,
    { readonly scope: string; readonly how: 'away' | 'gone'; readonly pairs: string[] }
  >();
  readonly #stopping = new AbortController();
  #sweeping: Promise<void> = Promise.resolve();
  #owedCount = 0;
  readonly #onReady = (): void => void this.#settleDebts();

  constructor(private readonly options: RegistrationOptions) {
    super();
  }

  get count(): number {
    return this.#byTarget.size;
  }

  find(scope: string, segment: string): Registration | undefined {
    const target = targetOf(scope, segment);
    return this.#byTarget.get(target) ?? this.#registering.get(target);
  }

  of(daemon: Daemon): readonly Registration[] {
    return [...(this.#byDaemon.get(daemon.id)?.values() ?? [])];
  }

  /** For a resume record. */
  kept(daemon: Daemon): readonly KeptRegistration[] {
    return this.of(daemon)
      .filter(({ fence }) => fence !== '')
      .map(({ method, instance, fence }) => [method, dedupeOf(instance), fence]);
  }

  /**
   * Makes `daemon` the worker of `method`. `'late'`: Redis did not answer in time; it follows when Redis is back, if the daemon is
   * still here and nobody newer has the method.
   *
   * @param unlessNewerThan a fence: a registration newer than that one stays
   */
  register(daemon: Daemon, method: string, dedupe: Dedupe, unlessNewerThan = ''): Promise<Registered> {
    const scope = scoped(daemon.tenant, daemon.user);
    const segment = segmentOf(method);
    const own = this.#byDaemon.get(daemon.id) ?? new Map<string, Registration>();
    this.#byDaemon.set(daemon.id, own);
    const old = own.get(segment);
    // a new one each time: what is said of the one before, and comes late, is not said of it
    const registration: Registration = {
      daemon,
      scope,
      method,
      segment,
      instance: instanceOf(dedupe),
      fence: '',
      isRung: false,
      isPicking: false,
      mustPickAgain: false,
    };
    if (old) this.#drop(old);
    own.set(segment, registration);
    this.#registering.set(targetOf(scope, segment), registration);
    this.#hold(registration);
    return new Promise((resolve) => {
      let isLate = false;
      const timer = setTimeout(() => {
        isLate = true;
        resolve('late');
      }, BUDGET_MS);
      const answer = (outcome: Registered): void => {
        clearTimeout(timer);
        resolve(outcome);
        if (isLate && outcome === 'registered' && this.has(registration)) daemon.onRegistered?.(method);
      };
      const wanted = { registration, unlessNewerThan, answer };
      const queued = this.#wanted.get(daemon);
      if (queued) queued.push(wanted);
      else {
        this.#wanted.set(daemon, [wanted]);
        // what a client sends in one go is one script
        setImmediate(() => void this.#flush(daemon));
      }
    });
  }

  /** Redis knows that what was registered here is no more. */
  get hasLeft(): boolean {
    return this.#scopes.size === 0 && this.#owed.size === 0;
  }

  /** `'gone'`: on purpose; what waits fails at once. `'away'`: calls wait for its return. Without `method`: all of them. `inherited`: a fence that it may have too. */
  async release(daemon: Daemon, how: 'away' | 'gone', method?: string, inherited?: string): Promise<void> {
    const own = this.#byDaemon.get(daemon.id);
    const leaving = method === undefined ? this.of(daemon) : [own?.get(segmentOf(method))].filter((one) => !!one);
    for (const registration of leaving) {
      registration.left = how;
      this.#forget(registration);
    }
    const pairs = leaving.filter(({ fence }) => fence !== '').flatMap(({ segment, fence }) => [segment, fence]);
    if (method !== undefined && inherited !== undefined) pairs.push(segmentOf(method), inherited);
    if (pairs.length > 0) await this.#release(scoped(daemon.tenant, daemon.user), how, pairs);
  }

  has(registration: Registration): boolean {
    return this.#byDaemon.get(registration.daemon.id)?.get(registration.segment) === registration;
  }

  /** Another registration is newer. */
  onReplaced(scope: string, segment: string, daemonId: string, fence: string): void {
    const registration = this.#byDaemon.get(daemonId)?.get(segment);
    if (!registration || registration.scope !== scope || registration.fence !== fence) return;
    this.#forget(registration);
    registration.daemon.onReplaced(registration.method);
  }

  /** The registry names a daemon of this process that is not here (any more). */
  async disown(scope: string, segment: string): Promise<void> {
    const { connection, keys, processId } = this.options;
    const entry = await connection.redis.hget(`${keys.rpc(scope)}@reg`, segment);
    const [fence, process, id] = entry?.split('|') ?? [];
    if (fence === undefined || process !== processId || this.#byDaemon.get(id ?? '')?.has(segment)) return;
    await this.#release(scope, 'away', [segment, fence]);
  }

  /** Writes all of it again, where nobody newer has it: after a pause, another Redis, a wiped one. */
  async reassertAll(): Promise<void> {
    const { connection, keys, processId } = this.options;
    await connection.redis.del(`${keys.rpcBuried}${processId}}`).catch(() => 0);
    for (const scopes of chunks([...this.#scopes.keys()], MOST_PER_TICK)) {
      const registrations = this.#inScopes(scopes);
      await Promise.all([...registrations].map(([daemon, own]) => this.#reassert(daemon, own).catch(() => {})));
    }
  }

  /** For the reaper. `lastSeen`: when that process was last known to live, in Redis ms. */
  async bury(process: string, lastSeen: number): Promise<void> {
    const { connection, keys, settings, clock } = this.options;
    const held = keys.rpcHeld(process);
    for (const scopes of chunks(await connection.redis.smembers(held), MOST_PER_TICK))
      await Promise.all(
        scopes.map((scope) =>
          connection.run(BURY, [`${keys.rpc(scope)}@reg`, keys.processes], [process, lastSeen, settings.graceMs]),
        ),
      );
    // one that has come back meanwhile has written its own again
    if (Number(await connection.redis.zscore(keys.processes, process)) > clock.at()) return;
    await connection.redis.set(`${keys.rpcBuried}${process}}`, 1, 'PX', MAX_TIMEOUT_MS + KEEP_MS);
    await connection.redis.unlink(held);
  }

  protected async onStart(): Promise<void> {
    this.options.connection.on('ready', this.#onReady);
    this.#sweeping = this.#sweepForever();
  }

  protected async onStop(): Promise<void> {
    const { connection, keys, processId } = this.options;
    this.#stopping.abort();
    connection.off('ready', this.#onReady);
    await this.#sweeping;
    // a connection that comes back in a moment is worth waiting for: the registry has no time-out
    if (this.#owed.size > 0 && (await connection.whenUp(1000))) await within(500, this.#settleDebts());
    if (this.hasLeft)
      await within(
        300,
        connection.redis.del(keys.rpcHeld(processId)).catch(() => 0),
      );
  }

  // --- registering

  async #flush(daemon: Daemon): Promise<void> {
    const batch = this.#wanted.get(daemon) ?? [];
    this.#wanted.delete(daemon);
    const { clock, connection } = this.options;
    // the fence that they would have had: whoever comes while this tries again is newer
    const asked = String(clock.at() * 1000);
    let left = batch;
    for (let tries = 0; left.length > 0 && !this.#stopping.signal.aborted; tries++) {
      left = left.filter(({ registration, answer }) => this.has(registration) || answer('lost'));
      try {
        // one that has to wait does not come over a newer one
        const isFirst = tries === 0;
        const fresh = left.filter(({ unlessNewerThan }) => isFirst && unlessNewerThan === '');
        const cautious = left.filter((one) => !fresh.includes(one));
        await Promise.all([this.#send(daemon, 'new', fresh), this.#send(daemon, 'recover', cautious, asked)]);
        return;
      } catch {
        await sleep(100, this.#stopping.signal);
        await connection.whenUp(1000);
      }
    }
  }

  async #send(daemon: Daemon, mode: 'new' | 'recover', batch: readonly Wanted[], asked = ''): Promise<void> {
    if (batch.length === 0) return;
    const { connection, keys, processId } = this.options;
    const [{ scope }] = [batch[0]?.registration as Registration];
    const held = this.#scopes.has(scope) ? connection.redis.sadd(keys.rpcHeld(processId), scope) : undefined;
    held?.catch(() => {});
    const given = batch.flatMap(({ registration: { segment, instance }, unlessNewerThan }) => [
      segment,
      instance,
      unlessNewerThan || asked || '0',
    ]);
    const reply = await this.#run(scope, daemon, mode, given);
    for (const [index, { registration, answer }] of batch.entries()) {
      const [fence, isBusy] = reply[index] as (typeof reply)[number];
      if (fence === '0') {
        this.#lose(registration);
        answer('lost');
        continue;
      }
      registration.fence = fence;
      if (this.has(registration)) {
        this.#know(registration);
        if (isBusy || registration.isRung) this.options.onWork(registration);
      } else void this.#release(scope, registration.left ?? 'away', [registration.segment, fence]);
      answer('registered');
    }
  }

  async #reassert(daemon: Daemon, given: readonly Registration[]): Promise<void> {
    const own = given.filter((registration) => this.has(registration));
    const [first] = own;
    if (!first) return;
    const { connection, keys, processId, metrics } = this.options;
    connection.redis.sadd(keys.rpcHeld(processId), first.scope).catch(() => {});
    const reply = await this.#run(
      first.scope,
      daemon,
      'reassert',
      own.flatMap(({ segment, instance, fence }) => [segment, instance, fence]),
    );
    for (const [index, registration] of own.entries()) {
      const [fence, isBusy, wasThere] = reply[index] as (typeof reply)[number];
      if (wasThere) continue;
      if (!this.has(registration)) {
        // it left meanwhile
        if (fence !== '0')
          void this.#release(registration.scope, registration.left ?? 'away', [registration.segment, fence]);
        continue;
      }
      if (fence === '0') {
        this.#lose(registration);
        continue;
      }
      metrics.reasserted.inc();
      if (isBusy) this.options.onWork(registration);
    }
  }

  async #run(
    scope: string,
    daemon: Daemon,
    mode: string,
    given: readonly string[],
  ): Promise<(readonly [fence: string, isBusy: boolean, wasThere: boolean])[]> {
    const { connection, keys, processId, clock } = this.options;
    const base = keys.rpc(scope);
    const notAfter = clock.at() + BUDGET_MS;
    const args = [base, scope, processId, daemon.id, mode, keys.inboxes, notAfter, ...given];
    const [first, ...flat] = (await connection.run(REGISTER, [`${base}@reg`], args)) as [
      string,
      ...(string | number)[],
    ];
    if (first === 'late') throw new RelayError('unavailable');
    return chunks(flat, 3).map(([fence, isBusy, wasThere]) => [String(fence), isBusy === 1, wasThere === 1]);
  }

  /** A newer registration has it. */
  #lose(registration: Registration): void {
    if (!this.has(registration)) return;
    this.#forget(registration);
    registration.daemon.onReplaced(registration.method);
  }

  #forget(registration: Registration): void {
    const { daemon, segment } = registration;
    const own = this.#byDaemon.get(daemon.id);
    if (own?.get(segment) !== registration) return;
    own.delete(segment);
    if (own.size === 0) this.#byDaemon.delete(daemon.id);
    this.#drop(registration);
  }

  /** Another daemon of this process that has the method too may be the rightful one again. */
  #drop(registration: Registration): void {
    const { segment, scope } = registration;
    const inScope = this.#scopes.get(scope);
    inScope?.delete(registration);
    if (inScope?.size === 0) this.#scopes.delete(scope);
    const target = targetOf(scope, segment);
    if (this.#registering.get(target) === registration) this.#registering.delete(target);
    if (this.#byTarget.get(target) !== registration) return;
    this.#byTarget.delete(target);
    for (const other of inScope ?? []) if (other.segment === segment && other.fence !== '') this.#know(other);
  }

  /** Redis has given it its fence. */
  #know(registration: Registration): void {
    const target = targetOf(registration.scope, registration.segment);
    if (this.#registering.get(target) === registration) this.#registering.delete(target);
    const known = this.#byTarget.get(target);
    if (!known || Number(known.fence) <= Number(registration.fence)) this.#byTarget.set(target, registration);
  }

  #hold(registration: Registration): void {
    const inScope = this.#scopes.get(registration.scope);
    if (inScope) inScope.add(registration);
    else this.#scopes.set(registration.scope, new Set([registration]));
  }

  // --- releasing

  async #release(scope: string, how: 'away' | 'gone', pairs: string[]): Promise<void> {
    const key = String(++this.#owedCount);
    this.#owed.set(key, { scope, how, pairs });
    await this.#pay(key).catch(() => {});
  }

  async #pay(key: string): Promise<void> {
    const owed = this.#owed.get(key);
    if (!owed) return;
    const { connection, keys, processId, settings, onEnded } = this.options;
    const { scope, how, pairs } = owed;
    const base = keys.rpc(scope);
    const args = [base, scope, how, settings.graceMs, keys.inboxes, processId, ...pairs];
    const ended = (await connection.run(RELEASE, [`${base}@reg`], args)) as string[];
    this.#owed.delete(key);
    for (const [id, segment] of chunks(ended, 2)) onEnded(scope, id as string, segment as string);
    if (!this.#scopes.has(scope)) connection.redis.srem(keys.rpcHeld(processId), scope).catch(() => {});
  }

  async #settleDebts(): Promise<void> {
    for (const key of [...this.#owed.keys()]) await this.#pay(key).catch(() => {});
  }

  // --- the sweep

  /** Compares with Redis what this process has, a part at a time: a key that was deleted heals by itself. */
  async #sweepForever(): Promise<void> {
    const { signal } = this.#stopping;
    let rest: string[] = [];
    let perTick = 1;
    while (!signal.aborted) {
      await sleep(TICK_MS, signal);
      if (!this.options.connection.isUp) continue;
      if (rest.length === 0) {
        rest = [...this.#scopes.keys()];
        perTick = Math.min(MOST_PER_TICK, Math.ceil((rest.length * TICK_MS) / ROUND_MS));
      }
      await within(2000, this.#compare(rest.splice(0, perTick))).catch(() => {});
    }
  }

  async #compare(scopes: readonly string[]): Promise<void> {
    if (scopes.length === 0) return;
    const { connection, keys, processId } = this.options;
    const held = connection.redis.sadd(keys.rpcHeld(processId), ...scopes);
    const compared = [...this.#inScopes(scopes)].map(async ([daemon, own]) => {
      const [{ scope }] = own as [Registration];
      const entries = await connection.redis.hmget(`${keys.rpc(scope)}@reg`, ...own.map(({ segment }) => segment));
      const missing = own.filter(
        ({ fence, instance }, index) => entries[index] !== `${fence}|${processId}|${daemon.id}|${instance}`,
      );
      await this.#reassert(daemon, missing);
    });
    await Promise.all([held, ...compared]);
  }

  #inScopes(scopes: readonly string[]): Map<Daemon, Registration[]> {
    const found = new Map<Daemon, Registration[]>();
    for (const scope of scopes)
      for (const registration of this.#scopes.get(scope) ?? []) {
        if (registration.fence === '') continue;
        const list = found.get(registration.daemon);
        if (list) list.push(registration);
        else found.set(registration.daemon, [registration]);
      }
    return found;
  }
}

function targetOf(scope: string, segment: string): string {
  return `${scope}|${segment}`;
}

function dedupeOf(instance: string): Dedupe {
  if (instance === 'durable') return true;
  return instance.startsWith('i:') ? decodeURIComponent(instance.slice(2)) : false;
}

function chunks<T>(items: readonly T[], size: number): T[][] {
  const parts: T[][] = [];
  for (let at = 0; at < items.length; at += size) parts.push(items.slice(at, at + size));
  return parts;
}
