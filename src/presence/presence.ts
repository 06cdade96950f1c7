import { RelayError } from '../core/errors.js';
import type { Meter } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import { type Connection, replyCode } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript } from '../redis/script.js';
import { escapePart, scoped } from '../wire/names.js';
import { type Change, deviceOf, fieldOf, Holding, type Stay, type Written } from './holding.js';
import { type PresenceMetrics, presenceMetrics } from './metrics.js';

const CHANGE = loadScript(import.meta.url, 'change');

/** Sockets of one user that are listed: a look-up answers with all of them, and a change looks at each. */
const MAX_SOCKETS = 1000;
/** A client that lost its connection is back by then, if it can: a stock one tries after 0.5 to 1.5 s. Shorter than a lease. */
const LINGER_MS = 2000;
/** On their way at once: thousands of sockets that come or go together must not hold up the lease on the same connection. */
const MAX_WRITES = 500;
const POLL_MS = 10;
const RETRY_MS = 500;
const LOOK_MS = 1500;
/** A round of the sweep over all users takes 30 s. */
const SWEEP_MS = 1000;
const SWEEP_PARTS = 30;
/** Keys in one question of the sweep. */
const ASKED = 500;
/** Whoever took this process for dead and began to bury it has finished by then. */
const BURIAL_MS = 6000;
const STOP_MS = 2000;

export interface PresenceOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly processId: string;
  /** Methods that the user serves. */
  readonly methodsOf: (tenant: string, user: string) => Promise<readonly string[]>;
  readonly meter: Meter;
}

export interface Person {
  readonly tenant: string;
  readonly user: string;
  readonly device: string | undefined;
}

/** A device that is online. Without `device`: the sockets whose token names none, together. */
export interface DevicePresence {
  readonly device?: string;
  /** When the oldest of its sockets came, in Redis ms since 1970. */
  readonly since: number;
  readonly sockets: number;
}

export interface Whereabouts {
  readonly devices: readonly DevicePresence[];
  readonly methods: readonly string[];
}

/** A socket among those who are online. */
export interface Visit {
  /** Resolves once every pod can find the socket, or that could not be written for now. */
  readonly whenTried: Promise<void>;
  /** The socket has ended. `isFinal`: its client left on purpose; others are given a moment to come back. */
  leave(isFinal: boolean): void;
}

/**
 * Who is online. Redis has a hash per user with each of its sockets and the process that holds it. A change of it and the event that
 * tells it are one script, so subscribers hear changes in the order in which they happened. A socket is removed only in the name of
 * the process that still holds it: the late death of an old connection changes nothing.
 *
 * What can't be written waits, and is written when Redis is back; what Redis lost is written again.
 */
export class Presence extends Service {
  readonly #users = new Map<string, Holding>();
  /** With something that Redis has not been told. */
  readonly #changed = new Set<Holding>();
  /** Whose changes Redis refused: they wait for another try, and hold up nobody else's. */
  readonly #refused = new Set<Holding>();
  readonly #metrics: PresenceMetrics;
  #isAwake = false;
  /** Changes on their way. */
  #writes = 0;
  /** After a fault of the wire nothing is written for a moment. */
  #retry: NodeJS.Timeout | undefined;
  #retryRefused: NodeJS.Timeout | undefined;
  #sweep: NodeJS.Timeout | undefined;
  #round: Iterator<Holding> | undefined;
  #afterBurial: NodeJS.Timeout | undefined;
  #lingering = 0;
  #isStopping = false;
  #told = 0;
  readonly #onReady = (): void => {
    clearTimeout(this.#retry);
    this.#retry = undefined;
    this.#admitRefused();
    this.reassert();
  };

  constructor(private readonly options: PresenceOptions) {
    super();
    this.#metrics = presenceMetrics(options.meter);
    options.meter.gauge(
      { name: 'presence_users', help: 'Users of whose sockets this process holds some.' },
      () => this.#users.size,
    );
  }

  protected async onStart(): Promise<void> {
    this.options.connection.on('ready', this.#onReady);
    this.#sweep = setInterval(() => this.#look(), SWEEP_MS);
    this.#sweep.unref();
  }

  /** Nobody is here any more. What can't be told within 2 s is left for the reaper: see `hasLeft`. */
  protected async onStop(): Promise<void> {
    this.#isStopping = true;
    const { connection } = this.options;
    connection.off('ready', this.#onReady);
    clearInterval(this.#sweep);
    clearTimeout(this.#afterBurial);
    for (const holding of this.#users.values()) {
      for (const [field, stay] of holding.stays()) {
        clearTimeout(stay.lingering);
        holding.leave(field, stay);
      }
      this.#changed.add(holding);
    }
    this.#admitRefused();
    const deadline = performance.now() + STOP_MS;
    while (!this.hasLeft && connection.isUp && performance.now() < deadline) {
      this.#wake();
      await sleep(POLL_MS);
    }
    clearTimeout(this.#retry);
    clearTimeout(this.#retryRefused);
  }

  /** Redis lists nobody as being here. A process that ends without that must be found dead, and buried. */
  get hasLeft(): boolean {
    return this.#users.size === 0;
  }

  /** A socket is admitted. Never throws; what can't be written now is written when Redis is back. */
  enter({ tenant, user, device }: Person, socketId: string): Visit {
    if (this.#isStopping) return { whenTried: Promise.resolve(), leave: () => {} };
    const scope = scoped(tenant, user);
    let holding = this.#users.get(scope);
    if (!holding) {
      holding = new Holding(tenant, user);
      this.#users.set(scope, holding);
    }
    const field = fieldOf(device, socketId);
    const stay = holding.enter(field, performance.now());
    this.#change(holding);
    const isTriedNow = this.options.connection.isUp && !this.#refused.has(holding);
    return {
      whenTried: isTriedNow ? holding.whenTried() : Promise.resolve(),
      leave: (isFinal) => this.#leave(holding, field, stay, isFinal),
    };
  }

  /**
   * Two look-ups, whatever the number of pods.
   *
   * @throws {RelayError} `unavailable`
   */
  async of(tenant: string, user: string): Promise<Whereabouts> {
    const looked = Promise.all([this.#devicesOf(tenant, user), this.options.methodsOf(tenant, user)]);
    const found = await within(LOOK_MS, looked).catch((error: unknown) => {
      throw new RelayError('unavailable', UNAVAILABLE, { cause: error });
    });
    if (!found) throw new RelayError('unavailable', UNAVAILABLE);
    const [devices, methods] = found;
    return { devices, methods };
  }

  /** For the reaper: nobody is held by that process any more. */
  async bury(processId: string): Promise<void> {
    const { connection, keys } = this.options;
    const held = keys.presenceHeld(processId);
    const scopes = await connection.redis.smembers(held);
    while (scopes.length > 0) {
      const part = scopes.splice(0, MAX_WRITES);
      const sent: Promise<readonly number[]>[] = [];
      connection.inOneWrite(() => {
        for (const scope of part) {
          const [tenant = '', user = ''] = scope.split('/').map(decodeURIComponent);
          sent.push(this.#send({ scope, tenant, user }, processId, []));
        }
      });
      for (const reply of await Promise.all(sent)) this.#count(reply);
      await connection.redis.srem(held, ...part);
    }
  }

  /** This process was taken for dead, and isn't. */
  returnToLife(): void {
    this.reassert();
    clearTimeout(this.#afterBurial);
    this.#afterBurial = setTimeout(() => this.reassert(), BURIAL_MS);
    this.#afterBurial.unref();
  }

  /** Redis may have lost something: everything is written again. */
  reassert(): void {
    if (this.#isStopping) return;
    for (const holding of this.#users.values()) this.#reassert(holding);
  }

  /** Resolves when every client that lost its connection here is back somewhere or counts as gone, or when it takes too long. */
  async settle(withinMs: number, signal: AbortSignal): Promise<void> {
    const deadline = performance.now() + Math.min(withinMs, LINGER_MS);
    while (this.#lingering > 0 && performance.now() < deadline && !signal.aborted) await sleep(POLL_MS, signal);
  }

  // --- sockets

  #leave(holding: Holding, field: string, stay: Stay, isFinal: boolean): void {
    if (!holding.holds(field, stay) || stay.lingering) return;
    const end = (): void => {
      holding.leave(field, stay);
      this.#change(holding);
    };
    if (isFinal) return end();
    this.#lingering++;
    stay.lingering = setTimeout(() => {
      this.#lingering--;
      end();
    }, LINGER_MS);
    stay.lingering.unref();
  }

  #change(holding: Holding): void {
    if (this.#refused.has(holding)) return;
    this.#changed.add(holding);
    this.#wake();
  }

  #reassert(holding: Holding): void {
    holding.reassert();
    this.#change(holding);
  }

  // --- to Redis

  /** What this turn of the loop brings goes together, at its end. */
  #wake(): void {
    if (this.#isAwake || this.#retry) return;
    this.#isAwake = true;
    setImmediate(() => this.#write());
  }

  #write(): void {
    this.#isAwake = false;
    while (!this.#retry && this.options.connection.isUp) {
      const batch = this.#nextBatch();
      if (batch.length === 0) return;
      const changes = batch.reduce((sum, { changes: { length } }) => sum + length, 0);
      this.#writes += changes;
      void this.#writeBatch(batch).then((isDone) => {
        this.#writes -= changes;
        if (!isDone) this.#retry ??= this.#tryAgain();
        if (this.#changed.size > 0) this.#wake();
      });
    }
  }

  #tryAgain(): NodeJS.Timeout {
    const timer = setTimeout(() => {
      this.#retry = undefined;
      this.#wake();
    }, RETRY_MS);
    return timer.unref();
  }

  #holdBack(holding: Holding): void {
    this.#changed.delete(holding);
    this.#refused.add(holding);
    // who came meanwhile does not wait for the next try
    for (const tell of holding.takeWaiting()) tell();
    this.#retryRefused ??= setTimeout(() => this.#admitRefused(), RETRY_MS).unref();
  }

  #admitRefused(): void {
    clearTimeout(this.#retryRefused);
    this.#retryRefused = undefined;
    for (const holding of this.#refused) this.#changed.add(holding);
    this.#refused.clear();
    if (this.#changed.size > 0) this.#wake();
  }

  /** False: Redis could not be asked, and what failed waits for another try. Never rejects. */
  async #writeBatch(batch: readonly Written[]): Promise<boolean> {
    const { connection, keys, processId } = this.options;
    const held = keys.presenceHeld(processId);
    const unnoted = batch
      .filter(({ holding, changes }) => !holding.isNoted && changes.some(({ kind }) => kind !== 'leave'))
      .map(({ holding }) => holding);
    let noting: Promise<unknown> = Promise.resolve();
    let writing: Promise<readonly number[] | undefined>[] = [];
    // Redis may lose everything before the answer is here, and then it is false again
    for (const holding of unnoted) holding.isNoted = true;
    connection.inOneWrite(() => {
      // before the sockets: whoever buries this process must find them
      if (unnoted.length > 0) noting = connection.redis.sadd(held, ...unnoted.map(({ scope }) => scope));
      writing = batch.map(async ({ holding, changes }) =>
        changes.length > 0 ? this.#send(holding, undefined, changes) : undefined,
      );
    });
    const [noted, ...written] = await Promise.allSettled([noting, ...writing]);
    const isNoted = noted.status === 'fulfilled';
    if (!isNoted) for (const holding of unnoted) holding.isNoted = false;
    let isDone = !isFault(noted);
    const ended: string[] = [];
    batch.forEach(({ holding, changes, waiting }, index) => {
      const outcome = written[index] as PromiseSettledResult<readonly number[] | undefined>;
      const reply = outcome.status === 'fulfilled' ? outcome.value : undefined;
      holding.isOnItsWay = false;
      for (const tell of waiting) tell();
      const isWritten = outcome.status === 'fulfilled' && (reply?.[4] ?? 0) === 0 && (isNoted || holding.isNoted);
      if (reply) this.#count(reply);
      if (changes.length > 0) this.#metrics.writes.inc({ outcome: isWritten ? 'ok' : 'failed' });
      if (isFault(outcome)) isDone = false;
      if (!isWritten) holding.giveBack(changes);
      if (!isWritten && holding.hasChanges && isDone) this.#holdBack(holding);
      else if (holding.hasChanges) this.#changed.add(holding);
      else if (holding.isEmpty) {
        this.#users.delete(holding.scope);
        if (holding.isNoted) ended.push(holding.scope);
      }
    });
    // a name too many there costs a look when this process is buried
    if (ended.length > 0) connection.redis.srem(held, ...ended).catch(() => 0);
    return isDone;
  }

  /** Of one user no two changes are on their way at once. */
  #nextBatch(): readonly Written[] {
    const batch: Written[] = [];
    const now = performance.now();
    let left = MAX_WRITES - this.#writes;
    for (const holding of this.#changed) {
      if (left <= 0) break;
      if (holding.isOnItsWay) continue;
      const written = holding.handOut(left, now);
      left -= written.changes.length;
      holding.isOnItsWay = true;
      this.#changed.delete(holding);
      batch.push(written);
    }
    return batch;
  }

  /** `buried`: a process all of whose sockets go. */
  async #send(
    { scope, tenant, user }: Pick<Holding, 'scope' | 'tenant' | 'user'>,
    buried: string | undefined,
    changes: readonly Change[],
  ): Promise<readonly number[]> {
    const { connection, keys, processId } = this.options;
    const room = `user:${escapePart(user)}`;
    const args = [
      buried ?? processId,
      buried === undefined ? '' : 'bury',
      MAX_SOCKETS,
      keys.ephemeral(scoped(tenant, room)),
      JSON.stringify(user),
      JSON.stringify(room),
      `${processId}.${++this.#told}`,
      ...changes.flatMap(({ field, kind, ageMs }) => [field, kind, ageMs]),
    ];
    return (await connection.run(CHANGE, [keys.presence(scope)], args)) as readonly number[];
  }

  #count([came = 0, went = 0, restored = 0, over = 0]: readonly number[]): void {
    const { told, reasserted, overLimit } = this.#metrics;
    if (came > 0) told.inc({ change: 'online' }, came);
    if (went > 0) told.inc({ change: 'offline' }, went);
    if (restored > 0) reasserted.inc({}, restored);
    if (over > 0) overLimit.inc({}, over);
  }

  // --- from Redis

  async #devicesOf(tenant: string, user: string): Promise<readonly DevicePresence[]> {
    const { connection, keys } = this.options;
    const scope = scoped(tenant, user);
    // who asks right after it connected here finds itself: what was written before is read
    const holding = this.#users.get(scope);
    if (holding?.hasChanges) this.#write();
    while (holding?.hasChanges && connection.isUp && !this.#retry && !this.#refused.has(holding)) await sleep(POLL_MS);
    return devicesIn(await connection.redis.hgetall(keys.presence(scope)));
  }

  /** A key that was deleted heals by itself. */
  #look(): void {
    const { connection, keys, processId } = this.options;
    if (!connection.isUp) return;
    const visited: Holding[] = [];
    for (let left = Math.ceil(this.#users.size / SWEEP_PARTS); left > 0; left--) {
      this.#round ??= this.#users.values();
      const next = this.#round.next();
      if (next.done) this.#round = undefined;
      else visited.push(next.value);
    }
    while (visited.length > 0) {
      const part = visited.splice(0, ASKED);
      const asked = [keys.presenceHeld(processId), ...part.map(({ scope }) => keys.presence(scope))];
      connection.redis.exists(...asked).then(
        (count) => {
          if (count < asked.length && !this.#isStopping)
            for (const holding of part) if (!holding.isEmpty) this.#reassert(holding);
        },
        () => {},
      );
    }
  }
}

/** Of the wire; Redis' own refusals are of one user's changes. */
function isFault(outcome: PromiseSettledResult<unknown>): boolean {
  return outcome.status === 'rejected' && replyCode(outcome.reason) === '';
}

const UNAVAILABLE = 'presence cannot be looked up now';

function devicesIn(found: Readonly<Record<string, string>>): readonly DevicePresence[] {
  const devices = new Map<string | undefined, { since: number; sockets: number }>();
  for (const [field, value] of Object.entries(found)) {
    const device = deviceOf(field);
    const since = Number(value.split('|')[2]);
    const known = devices.get(device);
    devices.set(device, { since: Math.min(since, known?.since ?? since), sockets: (known?.sockets ?? 0) + 1 });
  }
  return [...devices]
    .map(([device, { since, sockets }]) => ({ ...(device !== undefined && { device }), since, sockets }))
    .sort((one, other) => one.since - other.since);
}
