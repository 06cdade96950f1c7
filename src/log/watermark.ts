const MAX_PAST = 32;

/**
 * The newest entry of one partition that this process read or had acknowledged. If the log stands behind it, acknowledged
 * entries have vanished. It never holds an entry of an older epoch.
 */
export class Watermark {
  epoch = '';
  ms = 0;
  offset = 0;
  /** Epochs that ended: an answer that was under way when its epoch ended must not bring it back. */
  readonly #past: string[] = [];

  see(epoch: string, ms: number, offset: number): void {
    if (epoch !== this.epoch) {
      if (this.#past.includes(epoch)) return;
      this.begin(epoch);
    }
    if (offset <= this.offset) return;
    this.ms = ms;
    this.offset = offset;
  }

  /** Of an epoch that has begun already, what was seen in it stays. */
  begin(epoch: string): void {
    if (epoch === this.epoch) return;
    this.#past.push(this.epoch);
    if (this.#past.length > MAX_PAST) this.#past.shift();
    this.epoch = epoch;
    this.ms = 0;
    this.offset = 0;
  }
}
