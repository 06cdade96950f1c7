import { sleep, within } from '../../core/sleep.js';
import type { Connection } from '../../redis/connect.js';
import type { Keys } from '../../redis/keys.js';
import type { Asserted, Ledger } from './ledger.js';
import type { SessionMetrics } from './metrics.js';
import type { Held, Places } from './places.js';
import type { ProofOfLife } from './proof-of-life.js';
import { LIFE_MS } from './settings.js';

/** A full round of the sweep takes at least that long. */
const ROUND_MS = 6000;
const TICK_MS = 250;
/** Sessions of one pipeline, and of one tick. */
const MOST = 500;
const PIPELINE_MS = 2000;

export interface ReassertionOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly ledger: Ledger;
  readonly places: Places;
  readonly proof: ProofOfLife;
  readonly metrics: SessionMetrics;
  /** A newer connection of the device, which lives, has it. */
  readonly onLost: (held: Held) => void;
  /** A connection that Redis named lost its device to an earlier unheard, but newer one here. */
  readonly onWon: (scope: string, loser: string) => void;
}

/**
 * Redis may lose sessions, or not hear of them while it is away, and a message to a loser may be lost. So what this process
 * holds is compared with Redis: all of it when Redis has come back, a part at a time for ever. The newest admission wins.
 */
export class Reassertion {
  #running: Promise<void> = Promise.resolve();
  #isAgain = false;
  #isRunning = false;

  constructor(private readonly options: ReassertionOptions) {}

  /** Everything is written again. Never rejects; a second wish meanwhile is one more run after this one. */
  all(signal: AbortSignal): Promise<void> {
    this.#isAgain = true;
    if (!this.#isRunning) this.#running = this.#runAll(signal);
    return this.#running;
  }

  /** What Redis has not confirmed. Never rejects. */
  async unconfirmed(signal: AbortSignal): Promise<void> {
    await this.#write(
      [...this.options.places.authoritative()].filter(({ at }) => at === undefined),
      signal,
    );
  }

  async #runAll(signal: AbortSignal): Promise<void> {
    this.#isRunning = true;
    while (this.#isAgain && !signal.aborted) {
      this.#isAgain = false;
      await this.#write([...this.options.places.authoritative()], signal);
    }
    this.#isRunning = false;
  }

  async #write(sessions: readonly Held[], signal: AbortSignal): Promise<void> {
    for (let at = 0; at < sessions.length && !signal.aborted; at += MOST) {
      if (!(await this.#writePart(sessions.slice(at, at + MOST)))) return;
    }
  }

  /** False: Redis can't be asked; its return, or the sweep, brings them again. */
  async #writePart(part: readonly Held[]): Promise<boolean> {
    const { connection } = this.options;
    let asserted: Promise<unknown> = Promise.resolve();
    connection.inOneWrite(() => {
      asserted = Promise.all(part.map((held) => this.#assert(held)));
    });
    const isDone = await within(
      PIPELINE_MS,
      asserted.then(() => true),
    ).catch(() => false);
    return isDone === true;
  }

  async #assert(held: Held, provedDead = ''): Promise<void> {
    const { ledger, places, metrics, onWon } = this.options;
    if (!places.isCurrent(held)) return;
    held.mayBeWritten = true;
    const asserted = await ledger.assert(held, provedDead);
    if (!places.isCurrent(held)) {
      // it left meanwhile, and a script that Redis did not know yet comes after those that it knew
      if (asserted.isHeld) await ledger.leave(held.scope, held.holder.id);
      return;
    }
    if (!asserted.isHeld) return this.#lose(held, asserted, provedDead);
    held.at = asserted.at;
    held.renewedAt = performance.now();
    if (asserted.wasHeld) return;
    metrics.reasserted.inc();
    if (asserted.other !== '' && asserted.other !== provedDead) onWon(held.scope, asserted.other);
  }

  /** Only to one that lives: a client has not moved to a connection that died with its process. */
  async #lose(held: Held, { other }: Asserted, provedDead: string): Promise<void> {
    const { proof, places, onLost } = this.options;
    const life = await proof.of(held.scope, other);
    const isDead = life === 'gone' || life === 'silent';
    if (isDead && provedDead === '') return this.#assert(held, other);
    if (life === 'alive' && places.isCurrent(held)) onLost(held);
  }

  /** Costs Redis one look per session and round. */
  async sweepForever(signal: AbortSignal): Promise<void> {
    const { connection, places } = this.options;
    let rest: IterableIterator<Held> | undefined;
    let perTick = 1;
    while (!signal.aborted) {
      await sleep(TICK_MS, signal);
      if (signal.aborted || !connection.isUp) continue;
      if (!rest) {
        rest = places.authoritative();
        perTick = Math.min(MOST, Math.ceil((places.count * TICK_MS) / ROUND_MS));
      }
      const part: Held[] = [];
      while (rest && part.length < perTick) {
        const next = rest.next();
        if (next.done) rest = undefined;
        else part.push(next.value);
      }
      await this.#compare(part);
    }
  }

  async #compare(part: readonly Held[]): Promise<void> {
    if (part.length === 0) return;
    const { connection, keys } = this.options;
    let looked: Promise<(string | null)[]> = Promise.resolve([]);
    connection.inOneWrite(() => {
      looked = Promise.all(part.map(({ scope }) => connection.redis.hget(keys.session(scope).holder, 'id')));
    });
    const found = await within(PIPELINE_MS, looked).catch(() => undefined);
    if (!found) return;
    const now = performance.now();
    const wanting = part.filter(
      ({ holder, renewedAt }, index) => found[index] !== holder.id || now - renewedAt > LIFE_MS / 4,
    );
    if (wanting.length > 0) await this.#writePart(wanting);
  }
}
