import type { Connection } from './connect.js';

/**
 * An estimate of Redis's time, from the newest answer that carried it. It is never ahead of it while Redis's clock runs
 * evenly; when that one steps back, it is ahead by the step until the next answer.
 */
export class RedisClock {
  /** Redis ms minus this process's monotonic ms. */
  #offset: number | undefined;
  #isKnown = false;

  /** False until Redis has answered over the present connection: behind a new one may stand another Redis, with its own clock. */
  get isKnown(): boolean {
    return this.#isKnown;
  }

  /** `redisMs` came in an answer just now; its way here makes the estimate late, not early. */
  learn(redisMs: number): void {
    this.#offset = redisMs - performance.now();
    this.#isKnown = true;
  }

  /** The connection is gone. */
  doubt(): void {
    this.#isKnown = false;
  }

  /** Redis time at the monotonic time `at` (performance.now()); this machine's own clock until Redis has answered once. */
  at(monotonicMs: number = performance.now()): number {
    return Math.floor(this.#offset === undefined ? Date.now() : monotonicMs + this.#offset);
  }
}

/** Asks Redis for its time. */
export async function learnTime({ redis }: Connection, clock: RedisClock): Promise<void> {
  const [seconds = 0, micros = 0] = (await redis.time()).map(Number);
  clock.learn(seconds * 1000 + micros / 1000);
}
