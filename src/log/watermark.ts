const MAX_PAST = 32;

/**
 * The newest entry of one partition that this process read or had acknowledged. If the log stands behind it, acknowledged
 * entries have vanished. It never holds an entry of an older epoch.
 */
export class Watermark {
  epoch = '';
  ms = 0;
  offset = 0;
  /** Epochs that ended, and the newest offset seen in each: an answer that was under way when its epoch ended must not bring it back. */
  readonly #past = new Map<string, number>();

  see(epoch: string, ms: number, offset: number): void {
    if (epoch !== this.epoch) {
      if (this.#past.has(epoch)) return;
      this.begin(epoch);
    }
    if (offset <= this.offset) return;
    this.ms = ms;
    this.offset = offset;
  }

  /** Of an epoch that has begun already, what was seen in it stays. */
  begin(epoch: string): void {
    if (epoch === this.epoch) return;
    this.#past.set(this.epoch, this.offset);
    for (const oldest of this.#past.keys()) if (this.#past.size > MAX_PAST) this.#past.delete(oldest);
    this.epoch = epoch;
    this.ms = 0;
    this.offset = 0;
  }

  /** Newest offset seen in an epoch, also in one that ended; 0 = none. */
  endOf(epoch: string): number {
    return epoch === this.epoch ? this.offset : (this.#past.get(epoch) ?? 0);
  }
}
