import { RelayError } from '../../core/errors.js';
import type { Logger, Meter } from '../../core/ports.js';
import { Service } from '../../core/service.js';
import { within } from '../../core/sleep.js';
import type { Inbox } from '../../pods/inbox.js';
import { learnTime, RedisClock } from '../../redis/clock.js';
import type { Connection } from '../../redis/connect.js';
import type { Keys } from '../../redis/keys.js';
import { type Decision, type DeviceOf, type Holder, processOf, scopeOf } from './device.js';
import { Ledger } from './ledger.js';
import { Limits } from './limits.js';
import { type SessionMetrics, sessionMetrics } from './metrics.js';
import { type Held, Places } from './places.js';
import { ProofOfLife } from './proof-of-life.js';
import { Reach } from './reach.js';
import { Reassertion } from './reassertion.js';
import type { SessionSettings } from './settings.js';
import type { SessionVerdict } from './verdict.js';
import { WarmUp } from './warm-up.js';

/** Holders that may be proved dead for one newcomer; each was taken over by another newcomer meanwhile. */
const MAX_TRIES = 3;
/** Ends of sessions that Redis was not told; of more, the next newcomer finds that their holder is gone. */
const MAX_OWED = 10_000;
/** Debts in one pipeline. */
const MOST_PAID = 500;
const STOP_MS = 500;

export interface DeviceSessionsOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly inbox: Inbox;
  readonly processId: string;
  /** This process may take others for dead: neither it nor Redis stood still lately. */
  readonly mayJudge: () => boolean;
  /** That process has a connection to Redis at this moment; false at once when it was killed. */
  readonly isConnected: (processId: string) => Promise<boolean>;
  readonly settings: SessionSettings;
  readonly logger: Logger;
  readonly meter: Meter;
}

type Label = 'admit' | 'takeover' | 'dead' | 'local' | 'settle' | 'loop' | 'flap' | 'throttle';
type Judgement = readonly [Decision, Label];

/**
 * One connection per device is its session, on all pods together. Redis holds its id; one script decides. A holder that a
 * newcomer contests keeps its device only if it proves that it lives, and a device that is online is never put offline:
 * either its holder stays, or its newcomer has it.
 *
 * While Redis is away each process decides among its own connections; on its return the newest admission wins.
 */
export class DeviceSessions extends Service {
  readonly #clock = new RedisClock();
  readonly #metrics: SessionMetrics;
  readonly #places: Places;
  readonly #reach: Reach;
  readonly #ledger: Ledger;
  readonly #limits: Limits;
  readonly #warmUp: WarmUp;
  readonly #proof: ProofOfLife;
  readonly #reassertion: Reassertion;
  readonly #stopping = new AbortController();
  #running: Promise<unknown> = Promise.resolve();
  /** Holder id → scope, of sessions that ended and that Redis may still name. */
  readonly #owed = new Map<string, string>();
  readonly #onDown = (): void => this.#clock.doubt();
  readonly #onReady = (): void => {
    learnTime(this.options.connection, this.#clock).catch(() => {});
    this.#comeBack(true);
  };

  constructor(private readonly options: DeviceSessionsOptions) {
    super();
    const { connection, keys, settings, logger, meter } = options;
    this.#metrics = sessionMetrics(meter);
    const [clock, metrics] = [this.#clock, this.#metrics];
    this.#places = new Places(settings);
    this.#reach = new Reach({ connection, logger, onBack: () => this.#comeBack(false) });
    const shared = { connection, keys, settings, clock, metrics, reach: this.#reach };
    this.#warmUp = new WarmUp({ ...shared, warmupMs: settings.warmupMs });
    this.#ledger = new Ledger({ ...shared, isWarmingUp: () => this.#warmUp.isOn });
    this.#limits = new Limits(shared);
    this.#proof = new ProofOfLife({
      ...options,
      metrics,
      find: (scope, holderId) => this.#places.find(scope, holderId)?.holder,
    });
    this.#reassertion = new Reassertion({
      ...shared,
      ledger: this.#ledger,
      places: this.#places,
      proof: this.#proof,
      onLost: (held) => this.#evict(held, 'assertion'),
      onWon: (scope, loser) => this.#sendOff(scope, loser, 'assertion'),
    });
    meter.gauge(
      { name: 'device_sessions', help: "Connections of this process that are their device's session." },
      () => this.#places.count,
    );
  }

  protected async onStart(): Promise<void> {
    const { connection, inbox } = this.options;
    const { signal } = this.#stopping;
    connection.on('down', this.#onDown).on('ready', this.#onReady);
    inbox.on('session-evict', ({ scope, id, cause }) => this.#onEvict(String(scope), String(id), cause));
    this.#proof.listen();
    await this.#reach.ask(() => learnTime(connection, this.#clock));
    await this.#reach.ask(() => this.#warmUp.begin());
    this.#running = Promise.all([this.#warmUp.lookForever(signal), this.#reassertion.sweepForever(signal)]);
  }

  /** Its connections have left before; of what still holds a device here, Redis is told that it left. */
  protected async onStop(): Promise<void> {
    const { connection } = this.options;
    this.#stopping.abort();
    connection.off('down', this.#onDown).off('ready', this.#onReady);
    for (const held of [...this.#places.authoritative()]) this.#end(held);
    await within(STOP_MS, Promise.all([this.#running, this.#payDebts()]));
  }

  /** As often as an address connects, before anything else is looked at: ms to wait, 0 = go on. */
  connectWait(address: string | undefined): Promise<number> {
    return this.#limits.connectWait(address);
  }

  /** Before the token is proved: ms to wait, 0 = go on. Without a known address there is no limit. */
  flapWait(address: string | undefined, claimed: string | undefined): Promise<number> {
    return this.#limits.flapWait(address, claimed);
  }

  /** A token that proved nothing. */
  noteRefusal(address: string | undefined, claimed: string | undefined): void {
    this.#limits.noteRefusal(address, claimed);
  }

  /**
   * Decides whether the connection is its device's session from now on. Never rejects; takes one round trip, and up to about a
   * second when a holder has to prove its life. Whoever loses the device is evicted, here or on another pod.
   *
   * @param facts `isPaired`: `undefined` = not known, and treated as paired
   */
  async decide(device: DeviceOf, holder: Holder, facts: { readonly isPaired: boolean | undefined }): Promise<Decision> {
    const startedAt = performance.now();
    // first: a proof of life that somebody asks for meanwhile must find it
    const held = this.#places.enter(scopeOf(device), holder);
    const isPaired = facts.isPaired !== false;
    const [decision, label] = await this.#judge(held, isPaired);
    if (decision.is === 'refused') {
      this.#end(held);
      if (!isPaired && label !== 'flap') await this.#limits.noteRefusalOf(held.scope, label === 'throttle');
    }
    this.#metrics.decisions.inc({ decision: label });
    this.#metrics.seconds.observe((performance.now() - startedAt) / 1000);
    return decision;
  }

  /** The connection has ended. Idempotent; a successor keeps its device. */
  leave(device: DeviceOf, holder: Holder): void {
    const held = this.#places.find(scopeOf(device), holder.id);
    if (held) this.#end(held);
  }

  /**
   * Evicts whoever holds the device, on any pod. False: nobody does.
   *
   * @throws {RelayError} `unavailable`
   */
  async end(device: DeviceOf): Promise<boolean> {
    const scope = scopeOf(device);
    const here = this.#places.current(scope);
    const named = await this.#reach.ask(() => this.#ledger.holderOf(scope));
    if (here) this.#evict(here, 'request');
    if (named === undefined && !here) throw new RelayError('unavailable', 'device sessions cannot be looked up now');
    if (!named || named === here?.holder.id) return here !== undefined;
    const left = await this.#reach.ask(() => this.#ledger.leave(scope, named));
    const isReached = await this.#reach.ask(() => this.#tell(scope, named, 'request'));
    if (left === undefined || isReached === undefined)
      throw new RelayError('unavailable', undefined, { mayHaveHappened: true });
    return here !== undefined || isReached;
  }

  /** This process drains: its clients will come to other pods, all at once. Never rejects. */
  async noteDrain(): Promise<void> {
    await this.#reach.ask(() => this.#warmUp.begin());
  }

  /** For the reaper: the clients of a dead process come back all at once. What it held is taken by whoever comes. */
  async buryProcess(_processId: string): Promise<void> {
    await this.#warmUp.begin();
  }

  /** This process was taken for dead, and isn't. */
  returnToLife(): void {
    this.#comeBack(true);
  }

  // --- deciding

  async #judge(held: Held, isPaired: boolean): Promise<Judgement> {
    let provedDead = '';
    let contested: Extract<SessionVerdict, { is: 'contested' }> | undefined;
    for (let tries = 0; tries <= MAX_TRIES; tries++) {
      const verdict = await this.#verdict(held, isPaired, provedDead);
      // it left, or lost its device to a newcomer, before it was told that it has it
      if (!this.#places.has(held)) return refusal('settle', 0);
      if (verdict.is === 'limited') return refusal(verdict.by, verdict.waitMs);
      if (verdict.is === 'taken') return this.#take(held, verdict, provedDead);
      contested = verdict;
      const life = await this.#proof.of(held.scope, verdict.holder);
      if (life === 'alive' || tries === MAX_TRIES) break;
      // Redis went away in between: the next verdict is this process's own
      if (life !== 'unknown') provedDead = verdict.holder;
    }
    return refusal(contested?.by ?? 'settle', contested?.waitMs ?? 0);
  }

  async #verdict(held: Held, isPaired: boolean, provedDead: string): Promise<SessionVerdict> {
    const ask = (): Promise<SessionVerdict | 'late' | undefined> =>
      this.#reach.ask(
        () => {
          held.mayBeWritten = true;
          return this.#ledger.decide({ held, isPaired, provedDead });
        },
        (late) => this.#onLateVerdict(held, late),
      );
    let verdict = await ask();
    // its answer brought Redis's time, which had been set
    if (verdict === 'late') verdict = await ask();
    if (verdict && verdict !== 'late') {
      held.mayBeWritten = verdict.is === 'taken';
      if (verdict.is === 'taken' && !this.#places.has(held)) this.#owe(held);
      return verdict;
    }
    return this.#places.decide(held, provedDead);
  }

  /** Redis took it in after this process had decided by itself. */
  #onLateVerdict(held: Held, verdict: SessionVerdict | 'late'): void {
    if (verdict !== 'late' && verdict.is === 'taken' && !this.#places.isCurrent(held)) this.#owe(held);
  }

  #take(held: Held, { at, from }: Extract<SessionVerdict, { is: 'taken' }>, provedDead: string): Judgement {
    const { at: heldAt } = this.#places.current(held.scope) ?? {};
    // answers of scripts that Redis had to be sent in full come after later ones
    if (at !== undefined && heldAt !== undefined && heldAt > at) return refusal('settle', 0);
    const lost = this.#places.take(held, at);
    if (lost) this.#evict(lost, 'takeover');
    if (from !== '' && from !== lost?.holder.id) this.#sendOff(held.scope, from, 'takeover');
    if (at === undefined) return [{ is: 'admitted', how: 'local' }, 'local'];
    if (from === '') return [{ is: 'admitted', how: 'admit' }, 'admit'];
    return [{ is: 'admitted', how: 'takeover' }, from === provedDead ? 'dead' : 'takeover'];
  }

  // --- losing

  #evict(held: Held, cause: 'takeover' | 'assertion' | 'request'): void {
    if (!this.#places.remove(held)) return;
    this.#metrics.evictions.inc({ cause });
    if (cause === 'request') this.#owe(held);
    try {
      held.holder.evict();
    } catch (error) {
      this.options.logger.error(
        { event: 'session_error', err: error },
        'a connection that lost its device could not be told',
      );
    }
  }

  /** Best effort: a message that is lost is made up for when its process compares what it holds with Redis. */
  #sendOff(scope: string, holderId: string, cause: 'takeover' | 'assertion'): void {
    const held = this.#places.find(scope, holderId);
    if (held) this.#evict(held, cause);
    else this.#tell(scope, holderId, cause).catch(() => {});
  }

  async #tell(scope: string, holderId: string, cause: string): Promise<boolean> {
    const { inbox, processId } = this.options;
    const process = processOf(holderId);
    if (process === processId) return false;
    return inbox.send(process, { type: 'session-evict', scope, id: holderId, cause });
  }

  #onEvict(scope: string, holderId: string, cause: unknown): void {
    const held = this.#places.find(scope, holderId);
    if (!held) return;
    this.#evict(held, cause === 'request' || cause === 'assertion' ? cause : 'takeover');
  }

  // --- leaving

  #end(held: Held): void {
    if (this.#places.remove(held) && held.mayBeWritten) this.#owe(held);
  }

  #owe({ scope, holder: { id } }: Held): void {
    if (this.#owed.size < MAX_OWED || !this.#reach.isAway) this.#owed.set(id, scope);
    void this.#pay(id);
  }

  async #pay(id: string): Promise<void> {
    const scope = this.#owed.get(id);
    if (scope === undefined) return;
    const isPaid = await this.#reach.ask(() => this.#ledger.leave(scope, id));
    if (isPaid !== undefined) this.#owed.delete(id);
  }

  async #payDebts(): Promise<void> {
    const owed = [...this.#owed.keys()];
    while (owed.length > 0 && !this.#reach.isAway)
      await Promise.all(owed.splice(0, MOST_PAID).map((id) => this.#pay(id)));
  }

  // --- coming back

  /** `hasLost`: Redis may have lost what it was told, too. */
  #comeBack(hasLost: boolean): void {
    const { signal } = this.#stopping;
    if (signal.aborted) return;
    void this.#payDebts();
    void (hasLost ? this.#reassertion.all(signal) : this.#reassertion.unconfirmed(signal));
  }
}

function refusal(label: 'settle' | 'loop' | 'flap' | 'throttle', waitMs: number): Judgement {
  const reason = label === 'flap' ? 'flap' : label === 'throttle' ? 'reconnect' : 'session_settle';
  return [{ is: 'refused', reason, retryAfterMs: waitMs }, label];
}
