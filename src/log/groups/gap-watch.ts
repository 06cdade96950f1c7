/** Offsets, both included. */
export interface Range {
  readonly from: number;
  readonly to: number;
}

const MAX_SUSPECTED = 10_000;

/**
 * Finds what was cut from the log before the group was handed it. Offsets are dense, and one answer of Redis is one piece of the
 * log: a hole within it is a gap. Between two answers others may have read, so a hole there is only suspected, until the oldest
 * entry of the log says whether it is still there.
 */
export class GapWatch {
  #last: number | undefined;
  #suspected: Range[] = [];

  /** The newest offset that is known to have been read by somebody; `undefined`: it isn't known. */
  place(offset: number | undefined): void {
    this.#last = offset;
    this.#suspected = [];
  }

  get last(): number | undefined {
    return this.#last;
  }

  /** Everything up to there was handed to somebody, or told by whoever saw the hole. */
  handed(offset: number): void {
    if (offset > (this.#last ?? 0)) this.#last = offset;
  }

  /** What one answer brought, ascending. @returns the holes in it */
  see(offsets: readonly number[]): readonly Range[] {
    const holes: Range[] = [];
    let before: number | undefined;
    for (const offset of offsets) {
      if (before !== undefined) {
        if (offset > before + 1) holes.push({ from: before + 1, to: offset - 1 });
      } else if (this.#last !== undefined && offset > this.#last + 1) this.#suspect(this.#last + 1, offset - 1);
      before = offset;
    }
    if (before !== undefined && before > (this.#last ?? 0)) this.#last = before;
    return holes;
  }

  /** @returns of what was suspected, what is older than the oldest entry of the log; the rest was others' */
  verify(oldest: number): readonly Range[] {
    const suspected = this.#suspected;
    this.#suspected = [];
    return suspected
      .filter(({ from }) => from < oldest)
      .map(({ from, to }) => ({ from, to: Math.min(to, oldest - 1) }));
  }

  #suspect(from: number, to: number): void {
    const newest = this.#suspected.at(-1);
    if (newest && newest.to + 1 === from) this.#suspected[this.#suspected.length - 1] = { from: newest.from, to };
    else if (this.#suspected.length < MAX_SUSPECTED) this.#suspected.push({ from, to });
  }
}
