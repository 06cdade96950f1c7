const WINDOW_MS = 50;

/** How many there were lately: in the last whole window, or in the present one if that has more already. */
export class Rate {
  #startedAt = 0;
  #count = 0;
  #last = 0;

  /** @param now monotonic ms */
  add(count: number, now: number): void {
    const windows = Math.floor((now - this.#startedAt) / WINDOW_MS);
    if (windows > 0) {
      this.#last = windows === 1 ? this.#count : 0;
      this.#count = 0;
      this.#startedAt += windows * WINDOW_MS;
    }
    this.#count += count;
  }

  get perSecond(): number {
    return (Math.max(this.#last, this.#count) * 1000) / WINDOW_MS;
  }
}
