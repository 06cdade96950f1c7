import { GiveBack, type GroupEntry, type HandlerContext } from '../log/index.js';
import type { GroupReader } from './group.js';

/** An entry of a `for await` loop. */
export interface HeldEntry {
  readonly entry: GroupEntry;
  readonly signal: AbortSignal;
  /** It is done. Without this it is when the next one is asked for. */
  ack(): void;
  /** It has failed: it comes again later, and at last becomes a dead letter. */
  fail(error: unknown): void;
}

class Held implements HeldEntry {
  readonly outcome: Promise<void>;
  // taken apart by whoever loops, so they are bound
  ack: () => void = () => {};
  fail: (error: unknown) => void = () => {};

  constructor(
    readonly entry: GroupEntry,
    private readonly context: HandlerContext,
  ) {
    this.outcome = new Promise((resolve, reject) => {
      this.ack = resolve;
      this.fail = reject;
    });
  }

  get signal(): AbortSignal {
    return this.context.signal;
  }
}

/** A member whose handler is a loop. */
export class HeldEntries implements AsyncIterableIterator<HeldEntry> {
  readonly #reader: GroupReader;
  #inHand: Held | undefined;
  readonly #arrived: Held[] = [];
  #waiting: ((held: Held | undefined) => void) | undefined;
  #isOver = false;
  #failure: unknown;

  constructor(run: (handler: (entry: GroupEntry, context: HandlerContext) => Promise<void>) => GroupReader) {
    this.#reader = run(async (entry, context) => {
      if (this.#isOver) throw new GiveBack();
      const held = new Held(entry, context);
      if (this.#waiting) this.#waiting(held);
      else this.#arrived.push(held);
      this.#waiting = undefined;
      return held.outcome;
    });
    const end = (): void => {
      this.#isOver = true;
      this.#waiting?.(undefined);
    };
    this.#reader.ended.then(end, (error: unknown) => {
      this.#failure = error;
      end();
    });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<HeldEntry, undefined>> {
    this.#inHand?.ack();
    this.#inHand = undefined;
    if (this.#isOver) return this.#end();
    const held =
      this.#arrived.shift() ??
      (await new Promise<Held | undefined>((resolve) => {
        this.#waiting = resolve;
      }));
    this.#inHand = held;
    return held ? { done: false, value: held } : this.#end();
  }

  /** @throws what kept the member from taking part */
  #end(): IteratorResult<HeldEntry, undefined> {
    if (this.#failure !== undefined) throw this.#failure;
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<HeldEntry, undefined>> {
    this.#isOver = true;
    for (const held of [this.#inHand, ...this.#arrived]) held?.fail(new GiveBack());
    await this.#reader.stop();
    return { done: true, value: undefined };
  }
}
