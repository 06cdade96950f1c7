/** As many as a partition's log keeps by default; what is beyond may come twice when a replay is cut. */
const MAX_REMEMBERED = 100_000;

/**
 * What was taken of a room's replay. Replayed events carry no position, so a replay that was cut begins anew: this tells what
 * came already, by content, since after a failover other events may stand in the same places.
 */
export class Replay {
  #taken: number[] = [];
  #index = 0;

  /** The same replay, from its start. */
  rewind(): void {
    this.#index = 0;
  }

  /** Another one. */
  clear(): void {
    this.#taken = [];
    this.#index = 0;
  }

  /** The next event of the replay: did it come before? */
  isKnown(print: number): boolean {
    if (this.#taken[this.#index] === print) {
      this.#index++;
      return true;
    }
    this.#taken.length = Math.min(this.#taken.length, this.#index);
    return false;
  }

  take(print: number): void {
    if (this.#index !== this.#taken.length || this.#index >= MAX_REMEMBERED) return;
    this.#taken.push(print);
    this.#index++;
  }
}
