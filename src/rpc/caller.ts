import { sleep, within } from '../core/sleep.js';
import type { InboxMessage, Pods } from '../pods/index.js';
import { learnTime, type RedisClock } from '../redis/clock.js';
import { type Connection, replyCode } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript, type Script } from '../redis/script.js';
import { type CallName, type CallRequest, digest, keyOf, segmentOf } from './call-request.js';
import type { RpcMetrics } from './metrics.js';
import { type Failure, failed, failureOf, type Outcome, outcomeOf, outcomeOfText } from './outcome.js';
import type { GivenJob } from './owner.js';
import { encodePayload } from './payload.js';
import { BUDGET_MS, MARGIN_MS, MAX_TIMEOUT_MS, type RpcSettings } from './settings.js';
import type { StockQueues } from './stock-queues.js';

const CALL = loadScript(import.meta.url, 'call', ['common']);
const WATCH = loadScript(import.meta.url, 'watch', ['common']);
const CANCEL = loadScript(import.meta.url, 'cancel', ['common']);

export const CALLER_SCRIPTS: readonly Script[] = [CALL, WATCH, CANCEL];

/** A call that takes longer than that is looked after. */
const WATCH_MS = 500;
const TICK_MS = 100;
/** The longest between two looks at a call. */
const MAX_WATCH_MS = 1000;
/** Calls that one script looks at. */
const BATCH = 100;
/** After Redis came back, a method that is missing counts as away for that long: whoever has it writes it again. */
const SETTLE_MS = 3000;
/** Params of the calls that one caller waits for, in characters: they are kept, for Redis may lose them. */
const MAX_HELD = 32 * 1024 * 1024;
/** Equal to nobody's: what it marks goes to nobody who can't have it twice. */
const UNKNOWN_INSTANCE = '?';
const UNKNOWN_FENCE = '0';
/** Less than a lease lives after its last renewal. */
const JUDGE_MS = 1000;
/** How long a call that has run out waits to hear whether it had begun. */
const LAST_WORD_MS = 400;

export interface CallerOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly processId: string;
  readonly pods: Pods;
  readonly settings: RpcSettings;
  readonly clock: RedisClock;
  readonly metrics: RpcMetrics;
  readonly stock: StockQueues;
  /** A call waits for a method of this process. */
  readonly onWork: (scope: string, segment: string) => void;
  /** A call was given to a daemon of this process. */
  readonly onGiven: (job: GivenJob) => void;
}

interface Pending {
  readonly key: string;
  readonly scope: string;
  readonly id: string;
  /** Undefined: attached by id alone. */
  readonly request: CallRequest | undefined;
  /** '' until Redis has said it, of one attached by its id alone. */
  segment: string;
  readonly hash: string;
  readonly data: string;
  /** Stock BullMQ Workers serve it. */
  isStock: boolean;
  readonly startedAt: number;
  readonly outcome: Promise<Outcome>;
  readonly resolve: (outcome: Outcome) => void;
  /** Monotonic ms at which the call's time is over, if that is known. */
  deadlineAt: number;
  timer: NodeJS.Timeout | undefined;
  /** Redis has said that it has it. */
  isAccepted: boolean;
  /** It was sent, and the answer was lost: Redis may have it. */
  mayBeAccepted: boolean;
  /** Who may have had it, should Redis lose it: `instance` and the fence of its registration, as far as they are known. */
  instance: string;
  fence: string;
  watchedAt: number;
}

type CallReply = [
  code: string,
  now: number,
  a?: string | number,
  b?: string | number,
  deadline?: number,
  segment?: string,
];

/** Calls that this process waits for. Each has exactly one outcome, by its deadline. */
export class Caller {
  readonly #pending = new Map<string, Pending>();
  /** Characters of params that are kept, by caller. */
  readonly #held = new Map<string, number>();
  #watching: NodeJS.Timeout | undefined;
  #settledAt = 0;
  #isStopped = false;
  readonly #onReady = (): void => {
    if (this.options.connection.generation > 1) this.#settledAt = performance.now() + SETTLE_MS;
  };

  constructor(private readonly options: CallerOptions) {
    options.connection.on('ready', this.#onReady);
  }

  get pendingCount(): number {
    return this.#pending.size;
  }

  stop(): void {
    this.#isStopped = true;
    this.options.connection.off('ready', this.#onReady);
    clearTimeout(this.#watching);
    for (const pending of [...this.#pending.values()]) this.#settle(pending, failed('unavailable', pending.isAccepted));
  }

  /** Never rejects. The same call (caller, id, method, params) is made once, however often it is asked for. */
  async call(request: CallRequest): Promise<Outcome> {
    let data: string;
    try {
      data = encodePayload(request.params, this.options.settings.maxPayloadBytes);
    } catch (error) {
      return this.#count(failureOf(error), performance.now());
    }
    const hash = digest(`${request.method}\0${data}`);
    const { scope, id } = keyOf(request);
    const known = this.#pending.get(pendingKey(scope, id));
    // one that was attached to by its id alone says no more here than Redis does
    if (known?.request) return known.hash === hash ? known.outcome : this.#count(failed('conflict'), performance.now());
    if (this.#isStopped) return this.#count(failed('unavailable'), performance.now());
    if ((this.#held.get(holderOf(request)) ?? 0) + data.length > MAX_HELD)
      return this.#count(
        failed('overloaded', false, `calls with ${MAX_HELD} bytes wait for an answer`),
        performance.now(),
      );
    const outcome = this.#begin(scope, id, request, segmentOf(request.method), hash, data);
    if (known) {
      clearTimeout(known.timer);
      void outcome.then(known.resolve);
    }
    return outcome;
  }

  /** The outcome of a call that was made before, here or elsewhere, while it is known. */
  attach(name: CallName): Promise<Outcome> {
    const { scope, id } = keyOf(name);
    if (this.#isStopped) return Promise.resolve(failed('unavailable'));
    return this.#pending.get(pendingKey(scope, id))?.outcome ?? this.#begin(scope, id, undefined, '', '', '');
  }

  /** False: Redis can't be told. What has not begun never will; the call's outcome is `cancelled`. */
  async cancel(name: CallName, isForFuture: boolean): Promise<boolean> {
    const { scope, id } = keyOf(name);
    const said = await within(BUDGET_MS, this.#giveUp(scope, id, 'cancelled', isForFuture)).catch(() => undefined);
    if (!said) return false;
    const pending = this.#pending.get(pendingKey(scope, id));
    if (!pending) return true;
    const [what, a, b] = said;
    if (what === 'done') this.#settle(pending, outcomeOfText(a === 1, String(b)));
    else if (what === 'ended') this.#settle(pending, failed('cancelled', a === 1));
    else this.#settle(pending, failed('cancelled', what === 'active' || pending.isAccepted));
    return true;
  }

  /** A message of another process. */
  onAnswer({ scope, id, ok, answer, method }: InboxMessage): void {
    const pending = this.#pending.get(pendingKey(String(scope), String(id)));
    if (!pending) return;
    if (answer !== undefined) this.#settle(pending, outcomeOf(ok === true, answer));
    // too large for an inbox
    else void this.#watch(pending.scope, String(method), [pending]);
  }

  /** A worker of this process has answered a call of it. */
  settle(scope: string, id: string, outcome: Outcome): void {
    const pending = this.#pending.get(pendingKey(scope, id));
    if (pending) this.#settle(pending, outcome);
  }

  /** A worker of this process left on purpose, and with it this call. */
  onEnded(scope: string, id: string, segment: string): void {
    const pending = this.#pending.get(pendingKey(scope, id));
    if (pending) void this.#watch(scope, segment, [pending]);
  }

  // --- accepting

  #begin(
    scope: string,
    id: string,
    request: CallRequest | undefined,
    segment: string,
    hash: string,
    data: string,
  ): Promise<Outcome> {
    const startedAt = performance.now();
    let resolve: (outcome: Outcome) => void = () => {};
    const outcome = new Promise<Outcome>((done) => {
      resolve = done;
    });
    const key = pendingKey(scope, id);
    const pending: Pending = {
      key,
      scope,
      id,
      request,
      segment,
      hash,
      data,
      isStock: this.options.stock.isStock(scope, segment),
      startedAt,
      outcome,
      resolve,
      deadlineAt: startedAt + (request?.timeoutMs ?? MAX_TIMEOUT_MS),
      timer: undefined,
      isAccepted: false,
      mayBeAccepted: false,
      instance: '',
      fence: '',
      watchedAt: startedAt,
    };
    this.#pending.set(key, pending);
    this.#hold(pending, 1);
    // until Redis has answered; then until the deadline
    const budgetMs = Math.min(BUDGET_MS, request?.timeoutMs ?? BUDGET_MS);
    pending.timer = setTimeout(() => this.#settle(pending, failed('unavailable', pending.mayBeAccepted)), budgetMs);
    this.#watching ??= setTimeout(() => this.#tick(), TICK_MS);
    void this.#accept(pending);
    return outcome;
  }

  /** Asks until Redis has answered or the caller has been told: what is asked again is the same call. */
  async #accept(pending: Pending): Promise<void> {
    const { connection } = this.options;
    while (this.#pending.get(pending.key) === pending && !connection.isClosed) {
      try {
        if (connection.isUp) {
          if (pending.isStock && !(await this.#hasStockWorker(pending)))
            return this.#settle(pending, failed('no_worker'));
          return this.#onReply(pending, await this.#askFirst(pending));
        }
      } catch {
        // asked again
      }
      await (connection.isUp ? sleep(25) : connection.whenUp(100));
    }
  }

  async #askFirst(pending: Pending): Promise<CallReply> {
    const before = pending.mayBeAccepted;
    pending.mayBeAccepted = true;
    try {
      return await this.#ask(pending, 'call');
    } catch (error) {
      // Redis that refuses has done nothing
      if (replyCode(error) !== '') pending.mayBeAccepted = before;
      throw error;
    }
  }

  async #ask(pending: Pending, mode: 'call' | 'again'): Promise<CallReply> {
    const { connection, keys, processId, settings, clock } = this.options;
    const { scope, id, request, segment, hash, data, startedAt } = pending;
    const now = performance.now();
    if (!clock.isKnown) await learnTime(connection, clock);
    const base = keys.rpc(scope);
    const isSettling = now < this.#settledAt;
    const notAfter = clock.at() + Math.ceil(mode === 'again' ? BUDGET_MS : startedAt + BUDGET_MS - now);
    const args = [
      base,
      scope,
      segment,
      id,
      hash,
      mode,
      notAfter,
      Math.max(1, Math.ceil(pending.deadlineAt - now)),
      processId,
      request?.ownDaemon ?? '',
      settings.graceMs,
      request?.waitForWorkerMs ?? '',
      Math.max(settings.absentGraceMs, isSettling ? SETTLE_MS : 0),
      this.#judgesUntil,
      keys.inboxes,
      settings.maxQueued,
      request?.method ?? '',
      data,
      request?.isIdempotent ? '1' : '',
      mode === 'again' ? pending.instance : '',
      mode === 'again' ? pending.fence : '',
      pending.isStock ? '1' : '',
      settings.inFlight,
    ];
    return (await connection.run(CALL, [`${base}@call:${id}`, `${base}@reg`, keys.processes], args)) as CallReply;
  }

  /** Whether to make the call at all. Its end is heard from now on. */
  async #hasStockWorker({ scope, segment, request }: Pending): Promise<boolean> {
    const { settings, stock } = this.options;
    const hasWorker = await stock.follow(scope, segment);
    return hasWorker || (request?.waitForWorkerMs ?? settings.absentGraceMs) > 0;
  }

  /** A script that waits in a Redis that stands still must not judge by leases that nobody could renew. */
  get #judgesUntil(): number | '' {
    const { pods, clock } = this.options;
    return pods.mayJudge ? clock.at() + JUDGE_MS : '';
  }

  #onReply(pending: Pending, [code, now, a, b, deadline, segment]: CallReply): void {
    this.options.clock.learn(now);
    if (this.#pending.get(pending.key) !== pending) {
      // its caller was told that it may have been taken: a worker here must not begin it now
      if (code === 'new' && b === 2) this.#give(pending, String(a), deadline ?? now, 0);
      return;
    }
    switch (code) {
      case 'new':
        this.#accepted(pending, (deadline ?? now) - now);
        return this.#hand(pending, String(a), Number(b), deadline ?? now);
      case 'live':
        if (a !== '') Object.assign(pending, { instance: String(a), fence: UNKNOWN_FENCE });
        if (segment !== undefined) this.#know(pending, segment);
        return this.#accepted(pending, (deadline ?? now) - now);
      case 'done':
        return this.#settle(pending, outcomeOfText(a === 1, String(b)));
      case 'lost':
        return this.#settle(pending, failed('worker_lost', true));
      case 'cancelled':
        return this.#settle(pending, failed('cancelled', a === 1));
      case 'self':
        return this.#settle(pending, failed('bad_request', false, 'Cannot call RPC on the same socket'));
      case 'unknown':
        return this.#settle(pending, failed('bad_request', false, 'no such call, or it ended more than a minute ago'));
      case 'late':
        // the estimate of Redis's time was too late, and has been learnt anew; one that is made again has its next look
        return pending.isAccepted ? undefined : void this.#accept(pending);
      default:
        return this.#settle(pending, failed(code as Failure['code']));
    }
  }

  #accepted(pending: Pending, leftMs: number): void {
    pending.isAccepted = true;
    pending.deadlineAt = performance.now() + leftMs;
    clearTimeout(pending.timer);
    pending.timer = setTimeout(() => void this.#expire(pending), leftMs);
  }

  /** Of one attached by its id alone. */
  #know(pending: Pending, segment: string): void {
    const { stock } = this.options;
    pending.segment = segment;
    pending.isStock = stock.isStock(pending.scope, segment);
    if (pending.isStock) void stock.follow(pending.scope, segment).catch(() => {});
  }

  /** `where`: 0 = it waits, 1 = for a daemon of this process, 2 = it is given to one of this process, 3 = to one elsewhere. */
  #hand(pending: Pending, entry: string, where: number, deadline: number): void {
    const [fence = '', , , instance = ''] = entry.split('|');
    // one that waits may be picked up by anybody before the first look
    pending.instance = where >= 2 ? instance : UNKNOWN_INSTANCE;
    pending.fence = fence || UNKNOWN_FENCE;
    if (where === 1) this.options.onWork(pending.scope, pending.segment);
    if (where === 2) this.#give(pending, entry, deadline, deadline);
  }

  #give({ scope, segment, id, request, data }: Pending, entry: string, deadline: number, notAfter: number): void {
    const [fence = '', , daemon = ''] = entry.split('|');
    const isIdempotent = request?.isIdempotent === true;
    const params: unknown = JSON.parse(data);
    this.options.onGiven({ scope, segment, id, fence, daemon, deadline, notAfter, isIdempotent, params });
  }

  // --- ending

  async #expire(pending: Pending): Promise<void> {
    const said = await within(LAST_WORD_MS, this.#giveUp(pending.scope, pending.id, 'timeout')).catch(() => undefined);
    if (this.#pending.get(pending.key) !== pending) return;
    const [what, a, b] = said ?? ['unknown'];
    if (what === 'done') return this.#settle(pending, outcomeOfText(a === 1, String(b)));
    this.#settle(pending, failed('timeout', what === 'ended' ? a === 1 : true));
  }

  async #giveUp(
    scope: string,
    id: string,
    code: 'cancelled' | 'timeout',
    isForFuture = false,
  ): Promise<[string, ...(string | number)[]]> {
    const { connection, keys, processId } = this.options;
    const base = keys.rpc(scope);
    const args = [base, scope, id, code, processId, keys.inboxes, isForFuture ? '1' : ''];
    return (await connection.run(CANCEL, [`${base}@call:${id}`], args)) as [string, ...(string | number)[]];
  }

  #settle(pending: Pending, outcome: Outcome): void {
    if (this.#pending.get(pending.key) !== pending) return;
    this.#pending.delete(pending.key);
    this.#hold(pending, -1);
    clearTimeout(pending.timer);
    this.#count(outcome, pending.startedAt);
    pending.resolve(outcome);
  }

  #hold({ request, data }: Pending, sign: 1 | -1): void {
    if (!request) return;
    const holder = holderOf(request);
    const held = (this.#held.get(holder) ?? 0) + sign * data.length;
    if (held > 0) this.#held.set(holder, held);
    else this.#held.delete(holder);
  }

  #count(outcome: Outcome, startedAt: number): Outcome {
    const { metrics } = this.options;
    metrics.requests.inc({ outcome: outcome.ok ? 'ok' : outcome.code });
    metrics.duration.observe((performance.now() - startedAt) / 1000);
    return outcome;
  }

  // --- looking after those that take long

  #tick(): void {
    this.#watching = undefined;
    if (this.#isStopped || this.#pending.size === 0) return;
    this.#watching = setTimeout(() => this.#tick(), TICK_MS);
    const now = performance.now();
    const due = new Map<string, Pending[]>();
    for (const pending of this.#pending.values()) {
      if (!pending.isAccepted) continue;
      const age = now - pending.startedAt;
      if (now - pending.watchedAt < Math.min(MAX_WATCH_MS, Math.max(WATCH_MS, age / 10))) continue;
      pending.watchedAt = now;
      const target = `${pending.scope}|${pending.segment}`;
      const list = due.get(target);
      if (list) list.push(pending);
      else due.set(target, [pending]);
    }
    for (const list of due.values())
      for (let at = 0; at < list.length; at += BATCH) {
        const [{ scope, segment }] = [list[at] as Pending];
        void this.#watch(scope, segment, list.slice(at, at + BATCH));
      }
  }

  async #watch(scope: string, segment: string, watched: readonly Pending[]): Promise<void> {
    const { connection, keys, processId, settings, onWork } = this.options;
    const base = keys.rpc(scope);
    const args = [
      base,
      scope,
      segment,
      processId,
      settings.graceMs,
      settings.absentGraceMs,
      this.#judgesUntil,
      keys.inboxes,
      watched[0]?.isStock ? '1' : '',
      keys.rpcBuried,
      ...watched.map(({ id }) => id),
    ];
    let reply: (string | number)[];
    try {
      reply = (await connection.run(WATCH, [`${base}@reg`, keys.processes], args)) as (string | number)[];
    } catch {
      // Redis is away: the next look
      return;
    }
    if (reply[1] === 1) onWork(scope, segment);
    for (let at = 2; at < reply.length; at += 4) {
      const [id, what, isResult, answer] = reply.slice(at, at + 4);
      const pending = this.#pending.get(pendingKey(scope, String(id)));
      if (!pending) continue;
      if (what === 'done') this.#settle(pending, outcomeOfText(isResult === 1, String(answer)));
      else if (what === 'given') Object.assign(pending, { instance: String(isResult), fence: String(answer) });
      else await this.#restore(pending);
    }
  }

  /** Redis does not know a call that it had accepted: it lost it. It is made again, marked with whoever may have it. */
  async #restore(pending: Pending): Promise<void> {
    // whoever made it restores it; what a stock worker has in work is not known
    if (!pending.request || pending.isStock) return this.#settle(pending, failed('worker_lost', true));
    if (pending.deadlineAt - performance.now() < MARGIN_MS) return;
    try {
      this.#onReply(pending, await this.#ask(pending, 'again'));
    } catch {
      // the next look
    }
  }
}

function holderOf({ tenant, caller }: CallRequest): string {
  return `${tenant} ${caller}`;
}

function pendingKey(scope: string, id: string): string {
  return `${scope} ${id}`;
}
