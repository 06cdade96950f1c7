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

  /** @param onError told of what a turn throws: it is the application's, and stops nobody */
  constructor(
    private readonly dispatched: () => number,
    private readonly onError: (error: unknown) => void,
  ) {}

  get isIdle(): boolean {
    return this.#waiting.length === 0;
  }

  /** Runs it when the entry at `offset` was dispatched, or after a second; in the order of the calls. */
  after(offset: number, run: () => void): void {
    if (this.#waiting.length === 0 && offset <= this.dispatched()) return this.#run(run);
    this.#waiting.push({ offset, run, end: performance.now() + PATIENCE_MS });
    this.#watch();
  }

  /** Call when entries were dispatched. */
  advance(): void {
    if (this.#waiting.length > 0) this.#runDue(this.dispatched(), performance.now());
  }

  /** Nothing will come any more: whoever waits has its turn now. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#runDue(Number.POSITIVE_INFINITY, performance.now());
  }

  #runDue(offset: number, now: number): void {
    for (
      let first = this.#waiting[0];
      first && (first.offset <= offset || first.end <= now);
      first = this.#waiting[0]
    ) {
      this.#waiting.shift();
      this.#run(first.run);
    }
  }

  #run(run: () => void): void {
    try {
      run();
    } catch (error) {
      this.onError(error);
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
