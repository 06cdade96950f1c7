import type { Counter, Logger } from '../core/ports.js';
import type { Connection } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import type { Lease } from './lease.js';

const CLAIM_MS = 5000;

/** What a room does for a process that died. Idempotent: it may run twice, and by two pods. */
export type HandOver = (processId: string) => Promise<void>;

export interface ReaperOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly processId: string;
  readonly lease: Lease;
  readonly handOvers: readonly HandOver[];
  readonly mayRemove: (processId: string) => boolean;
  readonly logger: Logger;
  readonly reaped: Counter;
}

/**
 * Buries dead processes. Whoever finds one takes a short claim, hands over what it held, and removes it from the set last:
 * if the reaper dies meanwhile, the next one finds it still there.
 *
 * What others hold that this process has no hand-over for stays with them in the set: it does its own part, once, and leaves
 * claim and removal to who can do all of it.
 */
export class Reaper {
  readonly #busy = new Set<string>();
  /** Handed over in part; while they stay in the set. */
  readonly #inPart = new Set<string>();

  constructor(private readonly options: ReaperOptions) {}

  /** @param processIds all that are in the set and dead */
  bury(processIds: readonly string[]): void {
    for (const id of this.#inPart) if (!processIds.includes(id)) this.#inPart.delete(id);
    for (const id of processIds) {
      if (this.#busy.has(id) || this.#inPart.has(id)) continue;
      this.#busy.add(id);
      const burying = this.options.mayRemove(id) ? this.#buryOne(id) : this.#buryInPart(id);
      void burying.finally(() => this.#busy.delete(id));
    }
  }

  async #buryInPart(dead: string): Promise<void> {
    const { handOvers, logger } = this.options;
    try {
      for (const handOver of handOvers) await handOver(dead);
      this.#inPart.add(dead);
    } catch (error) {
      logger.debug({ event: 'reap_failed', process: dead, err: error }, 'tried again while it is in the set');
    }
  }

  async #buryOne(dead: string): Promise<void> {
    const { connection, keys, processId, lease, handOvers, logger, reaped } = this.options;
    try {
      if ((await connection.redis.set(keys.reaperClaim(dead), processId, 'PX', CLAIM_MS, 'NX')) === null) return;
      for (const handOver of handOvers) await handOver(dead);
      if (!(await lease.leave(dead, true))) return;
      reaped.inc();
      logger.info({ event: 'process_reaped', process: dead }, 'a dead process was buried');
    } catch (error) {
      logger.debug({ event: 'reap_failed', process: dead, err: error }, 'the next pod to see it will bury it');
    }
  }
}
