import { fullJitter } from '../../core/backoff.js';
import { RelayError } from '../../core/errors.js';
import type { Logger } from '../../core/ports.js';
import { GiveBack } from './give-back.js';
import { Holding, type Pending } from './holding.js';
import type { GroupMetrics } from './metrics.js';
import type { BatchHandler, EntryHandler, GroupSettings, HandlerContext } from './settings.js';
import type { FailureReason, Fate, Source } from './source.js';

/** What was completed in the last moment says how much to hold: so much time's worth, in s. */
const AHEAD_S = 0.1;
const MAX_AHEAD = 1000;
const MAX_HELD_BYTES = 32 * 1024 * 1024;
const RATE_MS = 250;
const TURN_MS = 20;
const MAX_ERROR_TEXT = 1000;

/** A handler at work. */
interface Run {
  readonly holdings: readonly Holding[];
  readonly context: Context;
  /** Monotonic ms; infinite: it has all the time. */
  end: number;
  isOver: boolean;
}

/** Its signal is made only for a handler that looks at it. */
class Context implements HandlerContext {
  #controller: AbortController | undefined;
  #reason: unknown;

  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.#reason !== undefined) this.#controller.abort(this.#reason);
    return this.#controller.signal;
  }

  abort(reason: unknown): void {
    this.#reason = reason;
    this.#controller?.abort(reason);
  }
}

export interface WorkbenchOptions {
  readonly settings: GroupSettings;
  readonly handler: EntryHandler | BatchHandler;
  readonly member: string;
  readonly metrics: GroupMetrics;
  readonly logger: Logger;
  /** The member is sure that it lives for the others too: else what it begins may be another's already. */
  readonly mayBegin: (source: Source) => boolean;
  /** There is room again. */
  readonly onRoom: () => void;
  readonly onTrimmed: (holding: Holding) => void;
}

/** What a member holds, and its handlers: who runs, who waits for a place, for its key or for its next try. */
export class Workbench {
  /** Per source, by id. */
  readonly #held = new Map<Source, Map<string, Holding>>();
  #count = 0;
  #bytes = 0;
  /** Taken over: they have waited longest. */
  #overdue: Holding[] = [];
  #ready: Holding[] = [];
  #readyAt = 0;
  readonly #runs = new Set<Run>();
  /** Handlers whose time was over, and that haven't returned. */
  #late = 0;
  readonly #lanes = new Map<string, Holding[]>();
  readonly #waits = new Map<Holding, NodeJS.Timeout>();
  #isPaused = false;
  #isEnding = false;
  #perSecond = 0;
  #completed = 0;
  #timer: NodeJS.Timeout | undefined;
  #timedAt = 0;
  #whenIdle: (() => void)[] = [];

  constructor(private readonly options: WorkbenchOptions) {}

  /** Entries that may still be read: the handlers' places, and what will be done within a moment. */
  get room(): number {
    if (!this.#isOpen) return 0;
    // while the handlers have enough, few large reads are cheaper than many small ones
    return this.#count > this.#places && this.#count > this.#most * 0.75 ? 0 : this.#most - this.#count;
  }

  /** As many again for what members left that are gone: a backlog, which always takes all of the room, must not keep it waiting. */
  get roomForOverdue(): number {
    return this.#isOpen ? 2 * this.#most - this.#count : 0;
  }

  get #isOpen(): boolean {
    return !this.#isPaused && !this.#isEnding && this.#bytes <= MAX_HELD_BYTES;
  }

  get #places(): number {
    const { concurrency, batch = 1 } = this.options.settings;
    return concurrency * batch;
  }

  get #most(): number {
    return this.#places + Math.min(MAX_AHEAD, Math.ceil(this.#perSecond * AHEAD_S));
  }

  /** Whether what is read may be added: else it is for others. */
  get takes(): boolean {
    return !this.#isPaused && !this.#isEnding;
  }

  get count(): number {
    return this.#count;
  }

  get running(): number {
    return this.#runs.size;
  }

  holds(source: Source, id: string): boolean {
    return this.#held.get(source)?.has(id) ?? false;
  }

  add(holding: Holding, isOverdue = false): void {
    let held = this.#held.get(holding.source);
    if (!held) {
      held = new Map();
      this.#held.set(holding.source, held);
    }
    if (held.has(holding.id)) return;
    held.set(holding.id, holding);
    this.#count++;
    this.#bytes += holding.bytes;
    this.#startTimer();
    if (this.#isEnding) return;
    const { orderedBy } = this.options.settings;
    if (orderedBy === undefined) return void (isOverdue ? this.#overdue : this.#ready).push(holding);
    let key: string;
    try {
      key = `${holding.source.partition}/${orderedBy === 'tenant' ? holding.entry.tenant : orderedBy(holding.entry)}`;
    } catch (error) {
      // an entry that has no key waits for nobody
      return void this.#failed(holding, 'error', error);
    }
    holding.key = key;
    const lane = this.#lanes.get(key);
    if (lane) return void lane.push(holding);
    this.#lanes.set(key, []);
    this.#ready.push(holding);
  }

  /** Begins what may begin. */
  pump(): void {
    const skipped: Holding[] = [];
    const until = performance.now() + TURN_MS;
    while (this.takes && this.#runs.size < this.#handlers) {
      // handlers that return at once must not keep the loop from all else
      if (performance.now() > until) {
        setImmediate(() => this.pump());
        break;
      }
      const holding = this.#next();
      if (!holding) break;
      if (holding.state !== 'queued') continue;
      if (!this.options.mayBegin(holding.source)) skipped.push(holding);
      else if (holding.isCounted) this.#run(this.#batchOf(holding));
      else void this.#begin(holding);
    }
    if (skipped.length > 0) this.#overdue = [...skipped, ...this.#overdue];
  }

  /** Handlers that may run. Those that don't return take places of others, but never the last one. */
  get #handlers(): number {
    const { concurrency } = this.options.settings;
    return Math.max(1, concurrency - Math.max(0, this.#late - concurrency));
  }

  pause(): void {
    this.#isPaused = true;
  }

  resume(): void {
    this.#isPaused = false;
    this.pump();
    this.options.onRoom();
  }

  get isPaused(): boolean {
    return this.#isPaused;
  }

  /** Everything of these sources that no handler is at work on: no longer held. What is at work comes not again here, should it fail. */
  letGo(sources?: ReadonlySet<Source>): ReadonlyMap<Source, readonly Holding[]> {
    const gone = new Map<Source, Holding[]>();
    for (const [source, held] of this.#held) {
      if (sources && !sources.has(source)) continue;
      const list: Holding[] = [];
      for (const holding of held.values()) {
        if (holding.state === 'queued' || holding.state === 'waiting') list.push(holding);
        else holding.isLetGo = true;
      }
      for (const holding of list) this.#forget(holding);
      if (list.length > 0) gone.set(source, list);
    }
    this.#dropEmptyLanes();
    return gone;
  }

  /** Nothing begins any more. Resolves when no handler runs. */
  async end(): Promise<void> {
    this.#isEnding = true;
    await this.whenIdle();
  }

  /** Resolves when no handler of these sources runs, and all that they did is acknowledged or lost; or when `signal` aborts. */
  async whenIdle(sources?: ReadonlySet<Source>, signal?: AbortSignal): Promise<void> {
    const wake = (): void => this.#wakeIdle();
    signal?.addEventListener('abort', wake);
    while (!signal?.aborted && this.#isBusy(sources)) {
      await new Promise<void>((resolve) => this.#whenIdle.push(resolve));
    }
    signal?.removeEventListener('abort', wake);
  }

  close(): void {
    this.#isEnding = true;
    clearTimeout(this.#timer);
    for (const timer of this.#waits.values()) clearTimeout(timer);
    this.#waits.clear();
    for (const run of this.#runs) run.context.abort(new RelayError('shutting_down'));
    this.#wakeIdle();
  }

  /** What came of acknowledgements. */
  settled(all: readonly Pending[], lost: ReadonlyMap<string, Fate>): void {
    const { metrics, onRoom } = this.options;
    for (const fate of lost.values()) if (fate !== 'ok') metrics.lost(fate);
    metrics.acknowledged(all.length - lost.size);
    // what no handler got was never held
    for (const pending of all) if (pending instanceof Holding) this.#forget(pending);
    onRoom();
  }

  #isBusy(sources?: ReadonlySet<Source>): boolean {
    for (const [source, held] of this.#held) {
      if (sources && !sources.has(source)) continue;
      for (const { state } of held.values()) if (state === 'running' || state === 'settling') return true;
    }
    return false;
  }

  #next(): Holding | undefined {
    const overdue = this.#overdue.shift();
    if (overdue) return overdue;
    const holding = this.#ready[this.#readyAt];
    if (holding) this.#readyAt++;
    if (this.#readyAt > 1000 && this.#readyAt * 2 > this.#ready.length) {
      this.#ready = this.#ready.slice(this.#readyAt);
      this.#readyAt = 0;
    }
    return holding;
  }

  #batchOf(first: Holding): readonly Holding[] {
    const { batch = 1 } = this.options.settings;
    if (batch === 1 || first.isAlone) return [first];
    const holdings = [first];
    while (holdings.length < batch && this.#overdue.length === 0 && this.#readyAt < this.#ready.length) {
      const candidate = this.#ready[this.#readyAt] as Holding;
      if (candidate.state === 'queued' && (candidate.isAlone || !candidate.isCounted)) break;
      this.#next();
      if (candidate.state === 'queued') holdings.push(candidate);
    }
    return holdings;
  }

  /** What was delivered before, and perhaps not to this member: its delivery is counted before anything is done. */
  async #begin(holding: Holding): Promise<void> {
    holding.state = 'running';
    const run: Run = { holdings: [holding], context: new Context(), end: Number.POSITIVE_INFINITY, isOver: false };
    // it has its place while Redis is asked
    this.#runs.add(run);
    const fate = await holding.source.begin(holding);
    this.#runs.delete(run);
    if (fate !== 'ok') {
      if (fate === 'trimmed') this.options.onTrimmed(holding);
      else this.options.metrics.lost(fate);
      this.#over(holding);
      return this.pump();
    }
    holding.deliveries++;
    holding.isCounted = true;
    holding.entry = holding.entry.redelivered(holding.deliveries);
    this.options.metrics.redelivered();
    if (this.#isEnding || holding.isLetGo) return this.#giveBack(holding);
    if (!this.options.mayBegin(holding.source)) {
      // Redis said so before this process was paused, perhaps: its next beat says whether the entry is still its own
      holding.state = 'queued';
      this.#ready.push(holding);
      return this.#wakeIdle();
    }
    this.#run([holding]);
    this.pump();
  }

  #run(holdings: readonly Holding[]): void {
    const { settings, handler } = this.options;
    const context = new Context();
    for (const holding of holdings) holding.state = 'running';
    const run: Run = { holdings, context, end: Number.POSITIVE_INFINITY, isOver: false };
    let returned: unknown;
    try {
      returned =
        settings.batch === undefined
          ? (handler as EntryHandler)((holdings[0] as Holding).entry, context)
          : (handler as BatchHandler)(
              holdings.map(({ entry }) => entry),
              context,
            );
    } catch (error) {
      return this.#ended(run, 'error', error);
    }
    if (typeof (returned as PromiseLike<unknown> | undefined)?.then !== 'function') return this.#ended(run);
    if (settings.timeoutMs > 0) run.end = performance.now() + settings.timeoutMs;
    this.#runs.add(run);
    (returned as PromiseLike<unknown>).then(
      () => {
        this.#ended(run);
        this.pump();
      },
      (error: unknown) => {
        this.#ended(run, 'error', error);
        this.pump();
      },
    );
  }

  #ended(run: Run, reason?: FailureReason, error?: unknown): void {
    const { metrics, logger } = this.options;
    if (run.isOver) {
      this.#late--;
      metrics.handled('late', run.holdings.length);
      logger.warn({ event: 'group_handler_late' }, 'a handler returned after its time: what it did was not counted');
      return;
    }
    this.#leave(run, reason, error);
  }

  #leave(run: Run, reason?: FailureReason, error?: unknown): void {
    run.isOver = true;
    this.#runs.delete(run);
    if (reason) this.options.metrics.handled(reason, run.holdings.length);
    for (const holding of run.holdings) {
      if (reason) {
        holding.isAlone = run.holdings.length > 1 || holding.isAlone;
        void this.#failed(holding, reason, error);
      } else this.#succeeded(holding);
    }
  }

  #succeeded(holding: Holding): void {
    holding.state = 'settling';
    this.#completed++;
    this.#nextOfLane(holding);
    holding.source.acknowledge(holding);
  }

  async #failed(holding: Holding, reason: FailureReason, error: unknown): Promise<void> {
    const { settings, member, metrics, logger } = this.options;
    holding.state = 'settling';
    if (error instanceof GiveBack) return this.#giveBack(holding);
    const failure = { at: Date.now(), member, reason, error: textOf(error) };
    const outcome = await holding.source.fail(holding, reason, failure);
    if (outcome === 'again') {
      holding.hasFailed = true;
      holding.isCounted = false;
      if (this.#isEnding || holding.isLetGo) return this.#giveBack(holding);
      holding.state = 'waiting';
      const waitMs = fullJitter(holding.deliveries - 1, settings.backoffMs, settings.maxBackoffMs);
      this.#waits.set(
        holding,
        setTimeout(() => {
          this.#waits.delete(holding);
          if (holding.state !== 'waiting') return;
          holding.state = 'queued';
          this.#ready.push(holding);
          this.pump();
        }, waitMs),
      );
      return this.#wakeIdle();
    }
    if (outcome === 'dead') {
      metrics.deadLettered(reason);
      const { position, deliveries } = holding.entry;
      logger.warn({ event: 'group_dead_letter', position, deliveries, reason }, 'an entry became a dead letter');
    } else if (outcome === 'trimmed') this.options.onTrimmed(holding);
    else metrics.lost(outcome);
    this.#over(holding);
    this.pump();
  }

  /** Others may have it at once. Should Redis not hear it, a later look finds that it is still held. */
  async #giveBack(holding: Holding): Promise<void> {
    holding.state = 'settling';
    await holding.source.release([holding]).catch(() => {});
    this.#over(holding);
    this.pump();
  }

  /** It is nobody's here any more, and the next of its key may begin. */
  #over(holding: Holding): void {
    this.#nextOfLane(holding);
    this.#forget(holding);
    this.options.onRoom();
  }

  /** Whose turn it is after this one; it has no key any more, so nobody waits for it. */
  #nextOfLane(holding: Holding): void {
    const { key } = holding;
    if (key === undefined) return;
    holding.key = undefined;
    const lane = this.#lanes.get(key);
    for (;;) {
      const next = lane?.shift();
      if (!next) break;
      if (next.state !== 'queued') continue;
      this.#ready.push(next);
      return;
    }
    this.#lanes.delete(key);
  }

  #forget(holding: Holding): void {
    if (holding.state === 'waiting') {
      clearTimeout(this.#waits.get(holding));
      this.#waits.delete(holding);
    }
    holding.state = 'over';
    const held = this.#held.get(holding.source);
    if (held?.get(holding.id) === holding) {
      held.delete(holding.id);
      this.#count--;
      this.#bytes -= holding.bytes;
    }
    if (this.#whenIdle.length > 0) this.#wakeIdle();
  }

  /** Lanes at whose head nothing is left that would call the next one. */
  #dropEmptyLanes(): void {
    const live = new Set<string>();
    for (const held of this.#held.values())
      for (const { key, state } of held.values()) if (key !== undefined && state !== 'over') live.add(key);
    for (const key of this.#lanes.keys()) if (!live.has(key)) this.#lanes.delete(key);
  }

  #wakeIdle(): void {
    const waiting = this.#whenIdle;
    this.#whenIdle = [];
    for (const resolve of waiting) resolve();
  }

  /** Looks after handlers that take too long, and at the pace; runs only while something is held. */
  #startTimer(): void {
    if (this.#timer) return;
    this.#timedAt = performance.now();
    this.#timer = setTimeout(() => this.#tick(), RATE_MS);
  }

  #tick(): void {
    this.#timer = undefined;
    const now = performance.now();
    const seconds = (now - this.#timedAt) / 1000;
    const perSecond = this.#completed / seconds;
    this.#perSecond = perSecond > this.#perSecond ? perSecond : (this.#perSecond + perSecond) / 2;
    this.options.metrics.handled('ok', this.#completed);
    this.#completed = 0;
    for (const run of this.#runs) {
      if (run.end > now) continue;
      const error = new RelayError('timeout', `the handler took more than ${this.options.settings.timeoutMs} ms`);
      this.#late++;
      this.#leave(run, 'timeout', error);
      run.context.abort(error);
    }
    if (this.#count > 0 && !(this.#isEnding && this.#runs.size === 0)) this.#startTimer();
    this.pump();
    this.options.onRoom();
  }
}

/** Anything can be thrown: what has no text, too. */
function textOf(error: unknown): string {
  try {
    const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    // half a character would be no JSON; Node 20 has it, its types don't
    return (text.slice(0, MAX_ERROR_TEXT) as string & { toWellFormed(): string }).toWellFormed();
  } catch {
    return 'the handler failed';
  }
}
