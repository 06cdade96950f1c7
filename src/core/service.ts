/**
 * A long-lived thing. `start` resolves when it is up, `stop` when all that it made is gone; both are idempotent,
 * and a `start` that failed may be tried again.
 */
export abstract class Service implements AsyncDisposable {
  #started: Promise<void> | undefined;
  #stopped: Promise<void> | undefined;

  protected abstract onStart(): Promise<void>;
  protected abstract onStop(): Promise<void>;

  start(): Promise<void> {
    this.#started ??= this.onStart().catch((error: unknown) => {
      this.#started = undefined;
      throw error;
    });
    return this.#started;
  }

  /** Stops what runs, also what is still starting. What never started has nothing to stop. */
  stop(): Promise<void> {
    if (!this.#started) return this.#stopped ?? Promise.resolve();
    this.#stopped ??= this.onStop();
    return this.#stopped;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}
