/** Who waits for a turn. */
interface Waiting {
  readonly begin: () => void;
  readonly leave: (reason: unknown) => void;
}

/** One at a time, in order. Who waits too long, or changes its mind, leaves without a turn. */
export class Turns {
  readonly #withinMs: number;
  readonly #waiting = new Set<Waiting>();
  #isTaken = false;
  #closedWith: Error | undefined;

  constructor(withinMs: number) {
    this.#withinMs = withinMs;
  }

  /** @throws the signal's reason when it aborts before the turn has come */
  async take<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    signal?.throwIfAborted();
    if (this.#closedWith) throw this.#closedWith;
    if (this.#isTaken) await this.#wait(signal);
    this.#isTaken = true;
    try {
      return await work();
    } finally {
      this.#pass();
    }
  }

  /** Nobody gets a turn any more. Resolves when the last one is over. */
  async close(reason: Error): Promise<void> {
    this.#closedWith = reason;
    for (const { leave } of this.#waiting) leave(reason);
    if (this.#isTaken) await new Promise<void>((begin) => this.#waiting.add({ begin, leave: () => {} }));
  }

  #wait(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const end = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
        this.#waiting.delete(entry);
      };
      const entry: Waiting = {
        begin: () => {
          end();
          resolve();
        },
        leave: (reason) => {
          end();
          reject(reason);
        },
      };
      const onAbort = (): void => entry.leave(signal?.reason);
      const timer = setTimeout(() => entry.leave(new Error(`no turn within ${this.#withinMs} ms`)), this.#withinMs);
      signal?.addEventListener('abort', onAbort);
      this.#waiting.add(entry);
    });
  }

  /** The turn goes from hand to hand: between two, nobody else can take it. */
  #pass(): void {
    const [next] = this.#waiting;
    if (next) next.begin();
    else this.#isTaken = false;
  }
}
