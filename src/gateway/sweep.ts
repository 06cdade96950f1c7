import type { Hub } from './hub.js';
import type { Resumable } from './resumable.js';

const TICK_MS = 1000;
/** Most ticks of a round over all sockets; fewer, if they must hear their position oftener. */
const MAX_PARTS = 30;
const SLICE_MS = 5;
/** Records written again after a new epoch, per tick of 50 ms. */
const RESAVE_BATCH = 200;
const RESAVE_MS = 50;

/**
 * The one shared round over all sockets: each second a thirtieth of them. It tells idle ones their position before trimming can
 * overtake it, and stores records that could not be stored, or that grow old.
 */
export class Sweep {
  #timer: NodeJS.Timeout | undefined;
  #round: Iterator<Resumable<unknown>> | undefined;
  #resaving: NodeJS.Timeout | undefined;
  /** A round over all was begun, and not finished. */
  #mustResaveAll = false;
  readonly #parts: number;

  constructor(
    private readonly sessions: ReadonlyMap<string, Resumable<unknown>>,
    private readonly hub: Hub,
    private readonly positionHeartbeatMs: number,
  ) {
    this.#parts = Math.min(MAX_PARTS, Math.max(1, Math.floor(positionHeartbeatMs / TICK_MS / 2)));
  }

  start(): void {
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
    this.#timer.unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    clearInterval(this.#resaving);
  }

  /**
   * After a new epoch Redis may have lost all records; after an outage it lacks those that could not be stored
   * (`isDirty`).
   */
  resave(which: 'all' | 'dirty'): void {
    clearInterval(this.#resaving);
    this.#mustResaveAll ||= which === 'all';
    const waiting = [...this.sessions.values()].filter(({ isDirty }) => isDirty || this.#mustResaveAll);
    this.#resaving = setInterval(() => {
      for (const session of waiting.splice(0, RESAVE_BATCH))
        if (session.subscriber.state !== 'closed') void session.save();
      if (waiting.length > 0) return;
      clearInterval(this.#resaving);
      this.#mustResaveAll = false;
    }, RESAVE_MS);
    this.#resaving.unref();
  }

  #tick(): void {
    const now = performance.now();
    let left = Math.ceil(this.sessions.size / this.#parts);
    while (left-- > 0 && performance.now() - now < SLICE_MS) {
      this.#round ??= this.sessions.values();
      const next = this.#round.next();
      if (next.done) this.#round = undefined;
      else this.#visit(next.value, now);
    }
  }

  #visit(session: Resumable<unknown>, now: number): void {
    const { subscriber } = session;
    if (subscriber.state === 'closed' || session.isSuperseded) return;
    const isDue = now - subscriber.positionToldAt >= this.positionHeartbeatMs - TICK_MS * this.#parts;
    if (subscriber.state === 'live' && isDue) this.hub.tellPosition(subscriber);
    if (session.isStale) void session.save();
  }
}
