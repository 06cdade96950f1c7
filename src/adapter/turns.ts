/** Nobody waits longer for an entry that should come. */
const PATIENCE_MS = 1000;

interface Turn {
  readonly offset: number;
  readonly end: number;
  readonly run: () => void;
}

/** What must come after an entry of one partition, although it isn't in the log: it waits until that entry was dispatched. */
export class Turns {
  #waiting: Turn[] = [];
  #timer: NodeJS.Timeout | undefined;

  constructor(private readonly dispatched: () => number) {}

  /** Runs it when the entry at `offset` was dispatched, or after a second; in the order of the calls. */
  after(offset: number, run: () => void): void {
    if (this.#waiting.length === 0 && offset <= this.dispatched()) return run();
    this.#waiting.push({ offset, run, end: performance.now() + PATIENCE_MS });
    this.#watch();
  }

  /** Call when entries were dispatched. */
  advance(): void {
    if (this.#waiting.length > 0) this.#runDue(this.dispatched(), performance.now());
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#waiting = [];
  }

  #runDue(offset: number, now: number): void {
    for (
      let first = this.#waiting[0];
      first && (first.offset <= offset || first.end <= now);
      first = this.#waiting[0]
    ) {
      this.#waiting.shift();
      first.run();
    }
  }

  #watch(): void {
    const [first] = this.#waiting;
    if (this.#timer || !first) return;
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined;
        this.#runDue(this.dispatched(), performance.now());
        this.#watch();
      },
      Math.max(1, first.end - performance.now()),
    );
    this.#timer.unref();
  }
}
