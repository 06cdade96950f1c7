/** A token bucket: `perSecond` on average, twice that in a burst. Takes no timer. */
export class RateLimit {
  #tokens: number;
  #filledAt: number;

  constructor(
    private readonly perSecond: number,
    now: number,
  ) {
    this.#tokens = 2 * perSecond;
    this.#filledAt = now;
  }

  /** `now` in monotonic ms. False: over the limit. */
  take(now: number): boolean {
    const earned = ((now - this.#filledAt) * this.perSecond) / 1000;
    this.#tokens = Math.min(2 * this.perSecond, this.#tokens + earned);
    this.#filledAt = now;
    if (this.#tokens < 1) return false;
    this.#tokens--;
    return true;
  }

  /** When one more would be allowed, in ms. */
  get retryAfterMs(): number {
    return Math.ceil(((1 - this.#tokens) * 1000) / this.perSecond);
  }
}
