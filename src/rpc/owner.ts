import type { Logger } from '../core/ports.js';
import { sleep } from '../core/sleep.js';
import type { RedisClock } from '../redis/clock.js';
import type { Connection } from '../redis/connect.js';
import { replyCode } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript, type Script } from '../redis/script.js';
import { type Daemon, mayHaveAgain } from './daemon.js';
import { type Ending, endingOf, failureEnding, RememberedEndings } from './ending.js';
import type { RpcMetrics } from './metrics.js';
import { type Outcome, outcomeOfText } from './outcome.js';
import { decodePayload } from './payload.js';
import type { Registration, Registrations } from './registrations.js';
import { BUDGET_MS, KEEP_MS, MARGIN_MS, MAX_ATTEMPTS, type RpcSettings } from './settings.js';

const PICK = loadScript(import.meta.url, 'pick', ['common']);
const FINISH = loadScript(import.meta.url, 'finish', ['common']);
const REQUEUE = loadScript(import.meta.url, 'requeue', ['common']);
const CONFIRM = loadScript(import.meta.url, 'confirm');

export const OWNER_SCRIPTS: readonly Script[] = [PICK, FINISH, REQUEUE, CONFIRM];

/** Jobs that one script picks up at most. */
const BATCH = 64;
/** A call that was given to a daemon, and takes longer, is confirmed; its caller's claim ends after 1.9 s. */
const CONFIRM_MS = 500;
const LOADED_MS = 50;
/** A job that is given up may be on its way here that long. */
const GIVEN_UP_MS = 10_000;
/** Requests of which this process knows that it sent them. */
const MAX_SENT = 100_000;

export interface OwnerOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly processId: string;
  readonly settings: RpcSettings;
  readonly clock: RedisClock;
  readonly registrations: Registrations;
  readonly metrics: RpcMetrics;
  readonly logger: Logger;
  /** A call of this process has ended. */
  readonly onAnswer: (scope: string, id: string, outcome: Outcome) => void;
  /** So has this one, and its outcome is in Redis. */
  readonly onEnded: (scope: string, id: string, segment: string) => void;
}

/** What a pick-up brought. */
interface Job {
  readonly id: string;
  /** As they are stored. */
  readonly params: unknown;
  /** Redis ms. */
  readonly deadline: number;
  readonly attempt: number;
  /** The instance that had it before, '' if none. */
  readonly before: string;
  readonly isIdempotent: boolean;
}

/** A call that was given to a daemon of this process when it was made. */
export interface GivenJob {
  readonly scope: string;
  readonly segment: string;
  readonly id: string;
  readonly fence: string;
  readonly daemon: string;
  /** Redis ms. */
  readonly deadline: number;
  /** Redis ms; if it comes later, its caller may have been told that it was not taken. */
  readonly notAfter: number;
  readonly isIdempotent: boolean;
  /** As they are stored. */
  readonly params: unknown;
}

/** Why a job goes back to its queue. */
type PutBack = 'sent' | 'unsent' | 'late';
const PUT_BACK: Readonly<Record<PutBack, string>> = { sent: '', unsent: '1', late: '2' };

interface InFlight {
  readonly registration: Registration;
  readonly id: string;
  readonly isIdempotent: boolean;
  token: string;
  /** Monotonic ms. */
  readonly endsAt: number;
  readonly timer: NodeJS.Timeout;
}

/** The end of a job, for Redis. */
interface Report {
  readonly key: string;
  readonly scope: string;
  readonly segment: string;
  readonly token: string;
  readonly ending: Ending;
  /** Monotonic ms. */
  readonly endsAt: number;
}

interface Load {
  /** Requests that a daemon has, and places kept for those that are being picked up. */
  count: number;
  /** Of those, requests in work, and among these the ones that nobody else may have. */
  inWork: number;
  own: number;
  /** Registrations with jobs that found no place. */
  readonly waiting: Set<Registration>;
}

/** Picks up calls of this process's daemons, gives them to them, and brings the answers back. */
export class Owner {
  readonly #inFlight = new Map<string, InFlight>();
  readonly #loads = new Map<string, Load>();
  readonly #remembered = new RememberedEndings();
  /** Endings to be told to Redis when it is back. */
  readonly #unreported = new Map<string, Report>();
  /** Requests sent by this process. A job that is marked as perhaps sent and not among them never was. */
  readonly #sent = new Set<string>();
  /** Pick-ups whose reply was lost: their jobs were not sent. */
  readonly #unheard = new Map<string, Registration>();
  /** Calls that were given to daemons here, by when they began, of which Redis does not know yet that they did. */
  readonly #unconfirmed = new Map<string, number>();
  #confirming: NodeJS.Timeout | undefined;
  /** Told to give up while the pick-up was under way. */
  readonly #givenUp = new Map<string, { readonly code: 'cancelled' | 'timeout'; readonly until: number }>();
  #tokens = 0;
  readonly #retired = new WeakSet<Daemon>();
  #isStopped = false;
  readonly #onReady = (): void => void this.#recover();

  constructor(private readonly options: OwnerOptions) {
    options.connection.on('ready', this.#onReady);
  }

  get inFlightCount(): number {
    return this.#inFlight.size;
  }

  stop(): void {
    this.#isStopped = true;
    this.options.connection.off('ready', this.#onReady);
    for (const { timer } of this.#inFlight.values()) clearTimeout(timer);
    this.#inFlight.clear();
    clearTimeout(this.#confirming);
  }

  /** A call waits for a method of this process. */
  ring(scope: string, segment: string): void {
    const registration = this.options.registrations.find(scope, segment);
    if (!registration) void this.options.registrations.disown(scope, segment).catch(() => {});
    else if (registration.fence === '') registration.isRung = true;
    else this.pick(registration);
  }

  pick(registration: Registration): void {
    if (!this.#mayPick(registration)) return;
    if (registration.isPicking) {
      registration.mustPickAgain = true;
      return;
    }
    void this.#pickUntilEmpty(registration);
  }

  /** A call that was given to a daemon of this process as it was made. What has no place, or comes too late, goes to the queue. */
  take({ scope, segment, id, fence, daemon, notAfter, ...job }: GivenJob): void {
    const { registrations, processId, clock, settings } = this.options;
    const token = `${processId}|${daemon}|${id}`;
    const registration = registrations.find(scope, segment);
    const isLate = !clock.isKnown || clock.at() > Math.min(notAfter, job.deadline);
    if (isLate || registration?.fence !== fence || !this.#mayPick(registration))
      return void this.#putBack(scope, segment, token, id, isLate ? 'late' : 'unsent');
    const load = this.#loadOf(registration.daemon);
    if (load.count >= settings.inFlight || registration.daemon.isLoaded) {
      this.#wait(registration, load);
      return void this.#putBack(scope, segment, token, id, 'unsent');
    }
    const key = keyOf(scope, id);
    this.#begin(key, registration, token, { ...job, id, attempt: 1, before: '' }, load);
    if (!this.#inFlight.has(key)) return;
    this.#unconfirmed.set(key, performance.now());
    if (notAfter - clock.at() < 2 * CONFIRM_MS) this.#confirm(0);
    else this.#confirming ??= setTimeout(() => this.#confirm(CONFIRM_MS), CONFIRM_MS);
  }

  /** Most calls have ended by then; of the others Redis must know before their caller's claim runs out. */
  #confirm(afterMs: number): void {
    clearTimeout(this.#confirming);
    this.#confirming = undefined;
    const { connection, keys, processId } = this.options;
    const due = new Map<Registration, string[]>();
    for (const [key, since] of this.#unconfirmed) {
      if (performance.now() - since < afterMs) break;
      this.#unconfirmed.delete(key);
      const flight = this.#inFlight.get(key);
      if (!flight) continue;
      const ids = due.get(flight.registration);
      if (ids) ids.push(flight.id);
      else due.set(flight.registration, [flight.id]);
    }
    for (const [{ scope, segment, daemon }, ids] of due) {
      const base = keys.rpc(scope);
      const args = [base, segment, `${processId}|${daemon.id}|`, ...ids];
      connection
        .run(CONFIRM, [`${base}@reg`], args)
        .then((cancelled) => {
          for (const id of cancelled as string[]) this.giveUp(scope, id, 'cancelled');
        })
        // what can't be told is what the caller's own look tells
        .catch(() => {});
    }
    if (this.#unconfirmed.size > 0) this.#confirming = setTimeout(() => this.#confirm(CONFIRM_MS), CONFIRM_MS / 2);
  }

  /** Whoever made the call asks whether the message that gave it to a daemon here has come. Redis says that `token` holds it. */
  check(scope: string, segment: string, id: string, token: string): void {
    const key = keyOf(scope, id);
    const flight = this.#inFlight.get(key);
    const ending = this.#remembered.get(key);
    // a Redis that fell back may not know what it was told since
    if (flight) flight.token = token;
    else if (ending) void this.#report({ key, scope, segment, token, ending, endsAt: performance.now() });
    else if (!this.#sent.has(key)) void this.#putBack(scope, segment, token, id, 'unsent');
  }

  /** Nobody waits for it. */
  giveUp(scope: string, id: string, code: 'cancelled' | 'timeout'): void {
    const key = keyOf(scope, id);
    const flight = this.#inFlight.get(key);
    if (flight) {
      this.#end(key, flight, failureEnding(code, true));
      return flight.registration.daemon.giveUp(id, code);
    }
    this.#givenUp.set(key, { code, until: performance.now() + GIVEN_UP_MS });
    for (const [old, { until }] of this.#givenUp) {
      if (until > performance.now()) break;
      this.#givenUp.delete(old);
    }
  }

  /** The daemon's connection is gone: what it had in work goes to the next one that may have it. */
  letGo(daemon: Daemon): void {
    for (const [key, flight] of [...this.#inFlight])
      if (flight.registration.daemon === daemon) this.#letGo(key, flight);
    this.#loads.delete(daemon.id);
  }

  /** It gets nothing more. */
  retire(daemon: Daemon): void {
    this.#retired.add(daemon);
  }

  isRetired(daemon: Daemon): boolean {
    return this.#retired.has(daemon);
  }

  /** Has requests in work that nobody else may have, or with `countsAll` any. */
  isBusy(daemon: Daemon, countsAll = false): boolean {
    const load = this.#loads.get(daemon.id);
    return load !== undefined && (countsAll ? load.inWork : load.own) > 0;
  }

  // --- picking up

  async #pickUntilEmpty(registration: Registration): Promise<void> {
    const load = this.#loadOf(registration.daemon);
    registration.isPicking = true;
    try {
      do {
        registration.mustPickAgain = false;
        const free = Math.min(BATCH, this.options.settings.inFlight - load.count);
        if (free <= 0 || registration.daemon.isLoaded) {
          registration.isPicking = false;
          return this.#wait(registration, load);
        }
        // kept before the answer is awaited: others pick for the same daemon
        load.count += free;
        let left = 0;
        try {
          left = await this.#pickUp(registration, free, load);
        } finally {
          load.count -= free;
        }
        if (left > 0) registration.mustPickAgain = true;
      } while (registration.mustPickAgain && this.#mayPick(registration));
    } catch (error) {
      registration.isPicking = false;
      // a connection that is lost says when it is back; a Redis that refuses is asked again in a moment. Not now: it would go round
      load.waiting.add(registration);
      if (replyCode(error) !== '') setTimeout(() => this.pick(registration), 200).unref();
      return;
    }
    registration.isPicking = false;
    if (registration.mustPickAgain) this.pick(registration);
    else this.#fill(load);
  }

  #mayPick(registration: Registration): boolean {
    return !this.#isStopped && !this.#retired.has(registration.daemon) && this.options.registrations.has(registration);
  }

  /** @returns how many jobs still wait */
  async #pickUp(registration: Registration, most: number, load: Load): Promise<number> {
    const { connection, keys, processId, clock } = this.options;
    const { scope, segment, daemon, fence, instance } = registration;
    const base = keys.rpc(scope);
    const token = `${processId}|${daemon.id}|${++this.#tokens}`;
    const notAfter = clock.at() + BUDGET_MS;
    const args = [base, segment, `${fence}|${processId}|${daemon.id}`, token, instance, most, processId, notAfter];
    let reply: (string | number)[];
    try {
      reply = (await connection.run(PICK, [`${base}@reg`], args)) as (string | number)[];
    } catch (error) {
      if (replyCode(error) === '') this.#unheard.set(token, registration);
      throw error;
    }
    if (reply[0] === 'moved') return 0;
    if (reply[0] === 'late') {
      clock.learn(Number(reply[1]));
      return 1;
    }
    const [, now, left, ...jobs] = reply as [string, number, number, ...(string | number)[]];
    clock.learn(now);
    for (let at = 0; at < jobs.length; at += 8) {
      const [id, data, deadline, attempt, before, isIdempotent, marked, markedAt] = jobs.slice(at, at + 8) as string[];
      const key = keyOf(scope, id as string);
      const wasMarked = markedAt !== '';
      const neverSent = wasMarked && markedAt === fence && !this.#sent.has(key);
      const job: Job = {
        id: id as string,
        params: JSON.parse(data as string),
        deadline: Number(deadline),
        attempt: Number(attempt),
        before: neverSent ? '' : ((wasMarked ? marked : before) as string),
        isIdempotent: isIdempotent === '1',
      };
      this.#begin(key, registration, token, job, load);
    }
    return left;
  }

  #begin(key: string, registration: Registration, token: string, job: Job, load: Load): void {
    const { settings, clock, registrations } = this.options;
    const flight = this.#inFlight.get(key);
    if (flight && flight.registration.daemon === registration.daemon) {
      // it was taken away and came back, and its daemon is still at work
      flight.token = token;
      return;
    }
    const { scope, segment } = registration;
    const finish = (ending: Ending): void =>
      void this.#report({ key, scope, segment, token, ending, endsAt: performance.now() });
    const remembered = this.#remembered.get(key);
    if (remembered) return finish(remembered);
    const givenUp = this.#givenUp.get(key);
    if (givenUp) return finish(failureEnding(givenUp.code, job.before !== ''));
    const { daemon, instance, method } = registration;
    const wasSent = job.before !== '';
    if (wasSent && !job.isIdempotent && !mayHaveAgain(instance, job.before))
      return finish(failureEnding('worker_lost', true));
    if (job.attempt > MAX_ATTEMPTS) return finish(failureEnding('worker_lost', true));
    if (!registrations.has(registration)) {
      // its connection went while it was picked up
      return void this.#putBack(scope, segment, token, job.id, 'unsent');
    }
    // another daemon of this process had it
    if (flight) this.#unfly(key, flight);
    if (wasSent) this.options.metrics.redelivered.inc();
    const leftMs = job.deadline - clock.at() + MARGIN_MS;
    load.count++;
    load.inWork++;
    if (isOnlyIts(registration, job)) load.own++;
    const now = performance.now();
    const begun: InFlight = {
      registration,
      id: job.id,
      isIdempotent: job.isIdempotent,
      token,
      endsAt: now + leftMs,
      timer: setTimeout(() => {
        if (this.#inFlight.get(key) !== begun) return;
        this.#end(key, begun, failureEnding('timeout', true));
        daemon.giveUp(job.id, 'timeout');
      }, leftMs),
    };
    this.#inFlight.set(key, begun);
    this.#sent.add(key);
    if (this.#sent.size > MAX_SENT) this.#sent.delete(this.#sent.values().next().value as string);
    const request = {
      id: job.id,
      method,
      params: decodePayload(job.params),
      deadline: job.deadline,
      attempt: job.attempt,
    };
    daemon.deliver(request, leftMs, (answer) => {
      if (this.#inFlight.get(key) !== begun) return this.options.metrics.late.inc();
      this.#end(key, begun, endingOf(answer, settings.maxPayloadBytes));
    });
  }

  // --- ending

  #end(key: string, flight: InFlight, ending: Ending): void {
    this.#unfly(key, flight);
    const { registration, token, endsAt } = flight;
    void this.#report({ key, scope: registration.scope, segment: registration.segment, token, ending, endsAt });
  }

  #unfly(key: string, flight: InFlight): void {
    const { registration, timer } = flight;
    clearTimeout(timer);
    this.#inFlight.delete(key);
    this.#unconfirmed.delete(key);
    const load = this.#loads.get(registration.daemon.id);
    if (!load) return;
    load.count--;
    load.inWork--;
    if (isOnlyIts(registration, flight)) load.own--;
    this.#fill(load);
  }

  /** Until a place is free; one that has much to read is looked at again. */
  #wait(registration: Registration, load: Load): void {
    load.waiting.add(registration);
    if (registration.daemon.isLoaded) setTimeout(() => this.#fill(load), LOADED_MS).unref();
  }

  /** A place has become free: the next method in turn has it. */
  #fill(load: Load): void {
    const [next] = load.waiting;
    if (!next || load.count >= this.options.settings.inFlight) return;
    load.waiting.delete(next);
    if (this.options.registrations.has(next)) this.pick(next);
    else this.#fill(load);
  }

  async #report(report: Report): Promise<void> {
    const { connection, keys, processId, onAnswer, metrics } = this.options;
    const { key, scope, segment, token, ending, endsAt } = report;
    const id = key.slice(scope.length + 1);
    const base = keys.rpc(scope);
    const { isResult, answer, reason } = ending;
    const args = [base, scope, segment, id, token, isResult ? '1' : '0', answer, reason, keys.inboxes, processId];
    this.#remembered.set(key, ending, endsAt);
    try {
      const code = await connection.run(FINISH, [`${base}${segment}:${id}:lock`], args);
      this.#unreported.delete(key);
      if (code === 1) onAnswer(scope, id, outcomeOfText(isResult, answer));
      else if (code !== 0) metrics.late.inc();
    } catch (error) {
      if (this.#isStopped || performance.now() > endsAt + KEEP_MS) return void this.#unreported.delete(key);
      this.#unreported.set(key, report);
      // one that refuses (full, read-only) does so for a while; one that is gone says when it is back
      if (replyCode(error) !== '') setTimeout(() => this.#reportAgain(key), 250).unref();
    }
  }

  #reportAgain(key: string): void {
    const report = this.#unreported.get(key);
    if (report) void this.#report(report);
  }

  #letGo(key: string, flight: InFlight): void {
    const { registration, token, id } = flight;
    if (isOnlyIts(registration, flight)) return this.#end(key, flight, failureEnding('worker_lost', true));
    this.#unfly(key, flight);
    void this.#putBack(registration.scope, registration.segment, token, id, 'sent');
  }

  /** `id` '' = all jobs that the token holds. */
  async #putBack(scope: string, segment: string, token: string, id: string, why: PutBack): Promise<void> {
    const { connection, keys, processId, onEnded } = this.options;
    const base = keys.rpc(scope);
    const args = [base, scope, segment, token, PUT_BACK[why], keys.inboxes, processId, id];
    for (let tries = 0; tries < 100 && !this.#isStopped; tries++) {
      try {
        const [isOurs, ...ended] = (await connection.run(REQUEUE, [`${base}@reg`], args)) as [number, ...string[]];
        if (isOurs === 1) this.ring(scope, segment);
        for (const one of ended) onEnded(scope, one, segment);
        return;
      } catch {
        await sleep(100);
        await connection.whenUp(1000);
      }
    }
  }

  /** Redis can be reached again: what it was not told, or did not tell, is made good. */
  async #recover(): Promise<void> {
    for (const [token, registration] of [...this.#unheard]) {
      this.#unheard.delete(token);
      await this.#putBack(registration.scope, registration.segment, token, '', 'unsent');
    }
    for (const key of [...this.#unreported.keys()]) this.#reportAgain(key);
    for (const { waiting } of this.#loads.values()) for (const registration of waiting) this.pick(registration);
  }

  #loadOf(daemon: Daemon): Load {
    const known = this.#loads.get(daemon.id);
    if (known) return known;
    const load: Load = { count: 0, inWork: 0, own: 0, waiting: new Set() };
    this.#loads.set(daemon.id, load);
    return load;
  }
}

function keyOf(scope: string, id: string): string {
  return `${scope} ${id}`;
}

/** Nobody else may have a request that was sent to it, nor it again. */
function isOnlyIts({ instance }: Registration, { isIdempotent }: { readonly isIdempotent: boolean }): boolean {
  return instance === 'raw' && !isIdempotent;
}
