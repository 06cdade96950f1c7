const SIZE = 131_072;
const MASK = SIZE - 1;

/** The ms of the newest 131,072 offsets (1 MB): with them an offset is a stream id again. */
export class OffsetTimes {
  readonly #ms = new Float64Array(SIZE);
  #first: number | undefined;
  #newest = 0;

  set(offset: number, ms: number): void {
    // a log that fell back: what newer offsets took the place of is not remembered again
    if (offset <= this.#newest) this.#first = this.oldest;
    // offsets that were jumped over have no time of their own, and the ring's old ones must not stand in for them
    for (
      let skipped = Math.max(this.#newest + 1, offset - SIZE);
      this.#first !== undefined && skipped < offset;
      skipped++
    )
      this.#ms[skipped & MASK] = 0;
    this.#ms[offset & MASK] = ms;
    this.#first ??= offset;
    this.#newest = offset;
  }

  get(offset: number): number | undefined {
    if (this.oldest === undefined || offset < this.oldest || offset > this.#newest) return undefined;
    return this.#ms[offset & MASK] || undefined;
  }

  /** Oldest offset that is remembered. */
  get oldest(): number | undefined {
    return this.#first === undefined ? undefined : Math.max(this.#first, this.#newest - MASK);
  }

  clear(): void {
    this.#ms.fill(0);
    this.#first = undefined;
    this.#newest = 0;
  }
}
