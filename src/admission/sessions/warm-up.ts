import { sleep } from '../../core/sleep.js';
import type { RedisClock } from '../../redis/clock.js';
import type { Connection } from '../../redis/connect.js';
import type { Keys } from '../../redis/keys.js';
import type { Reach } from './reach.js';

const LOOK_MS = 1000;

export interface WarmUpOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly clock: RedisClock;
  readonly reach: Reach;
  readonly warmupMs: number;
}

/**
 * For some time after a process of the cluster has started, drained or died, its clients come back all at once, to any pod. So
 * its end is a time in Redis, which every process looks up once a second.
 */
export class WarmUp {
  /** Redis ms. */
  #endsAt = 0;

  constructor(private readonly options: WarmUpOptions) {}

  get isOn(): boolean {
    const { clock, reach } = this.options;
    // with Redis away nothing is limited
    return !reach.isAway && clock.at() < this.#endsAt;
  }

  /** @throws when Redis can't be told */
  async begin(): Promise<void> {
    const { connection, keys, clock, warmupMs } = this.options;
    if (warmupMs === 0) return;
    this.#endsAt = Math.max(this.#endsAt, clock.at() + warmupMs);
    await connection.redis.set(keys.warmUp, this.#endsAt, 'PX', warmupMs);
  }

  async lookForever(signal: AbortSignal): Promise<void> {
    const { connection, keys, reach } = this.options;
    while (!signal.aborted) {
      await sleep(LOOK_MS, signal);
      const endsAt = signal.aborted ? undefined : await reach.ask(() => connection.redis.get(keys.warmUp));
      if (endsAt !== undefined) this.#endsAt = Number(endsAt ?? 0);
    }
  }
}
