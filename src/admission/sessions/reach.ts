import type { Logger } from '../../core/ports.js';
import { type Connection, replyCode } from '../../redis/connect.js';

/** Redis answers in less than a ms; whoever connects waits no longer than that for the first answer that doesn't come. */
export const ASK_MS = 700;

const STALL_MS = 100;
/** So long without a refusal, and the next one is news. */
const CALM_MS = 60_000;

export interface ReachOptions {
  readonly connection: Connection;
  readonly logger: Logger;
  /** Redis answers again, over the same connection: it has lost nothing, and was not told everything. */
  readonly onBack: () => void;
}

/** Asks Redis, but never for long: while it is known to be away the answer is `undefined` at once. */
export class Reach {
  /** The connection over which it does not answer. */
  #silent: number | undefined;
  #refusedAt = -Infinity;

  constructor(private readonly options: ReachOptions) {}

  get isAway(): boolean {
    const { connection } = this.options;
    return !connection.isUp || this.#silent === connection.generation;
  }

  /**
   * What `send` is answered, or `undefined`: Redis is away, too slow or refuses. Never rejects.
   *
   * @param onLate gets an answer that came after that
   */
  async ask<Reply>(send: () => Promise<Reply>, onLate?: (reply: Reply) => void): Promise<Reply | undefined> {
    if (this.isAway) return undefined;
    const { generation } = this.options.connection;
    return new Promise((resolve) => {
      let isLate = false;
      const giveUp = (): void => {
        isLate = true;
        this.#silent = generation;
        resolve(undefined);
      };
      const dueAt = performance.now() + ASK_MS;
      let timer = setTimeout(() => {
        // this process stood still: what Redis answered meanwhile is still to be read
        if (performance.now() - dueAt > STALL_MS) timer = setTimeout(giveUp, STALL_MS);
        else giveUp();
      }, ASK_MS);
      send().then(
        (reply) => {
          clearTimeout(timer);
          if (isLate) onLate?.(reply);
          resolve(reply);
          this.#answered(generation);
        },
        (error: unknown) => {
          clearTimeout(timer);
          resolve(undefined);
          if (replyCode(error) === '') return;
          this.#refused(error);
          this.#answered(generation);
        },
      );
    });
  }

  #answered(generation: number): void {
    if (this.#silent !== generation) return;
    this.#silent = undefined;
    this.options.onBack();
  }

  #refused(error: unknown): void {
    const isNew = performance.now() - this.#refusedAt > CALM_MS;
    this.#refusedAt = performance.now();
    // one that is out of memory refuses what writes, and answers the rest
    if (!isNew) return;
    this.options.logger.error(
      { event: 'session_refused', err: error },
      'Redis refuses what device sessions ask: each pod decides for itself until it no longer does',
    );
  }
}
