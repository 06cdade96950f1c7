// for applications whose `lib` is older than `await using`
/// <reference lib="esnext.disposable" preserve="true" />
import type { RelayError } from '../core/errors.js';
import { defer } from './deferred.js';
import type { EventMap, RelayEvent } from './events.js';

interface Item<Event> {
  /** Absent: a mark, which is done when everything before it is. */
  readonly event: Event | undefined;
  readonly done: () => void;
}

/**
 * What a room brings from now on, in order: give a handler to `subscribe`, or read it by `for await`. An event is handled when
 * the handler's promise has settled, or when the loop asks for the next one or unsubscribes; only then the client's place moves
 * past it.
 *
 * The buffer in between is bounded (`bufferSize`). A consumer that is slower than its room misses nothing: see `lagging`.
 * Leaving the loop by `break` unsubscribes.
 */
export class Subscription<Events extends EventMap = EventMap>
  implements AsyncIterableIterator<RelayEvent<Events>>, AsyncDisposable
{
  readonly #items: Item<RelayEvent<Events>>[] = [];
  #events = 0;
  /** Given, and not handled yet: more than one only for who asks for several at once. */
  #inHand: (() => void)[] = [];
  #asked: Promise<unknown> = Promise.resolve();
  #wake: (() => void) | undefined;
  #end: { readonly error?: RelayError } | undefined;
  readonly #ready = defer<void>();

  constructor(
    readonly room: string,
    readonly bufferSize: number,
    private readonly hooks: { readonly leave: () => Promise<void>; readonly onTaken: () => void },
  ) {}

  /**
   * Resolves when the relay has taken the subscription: what is published from then on arrives.
   *
   * @throws {RelayError} `permission_denied`, `bad_request`; `cancelled` when it ended before
   */
  get ready(): Promise<void> {
    return this.#ready.promise;
  }

  /** Events that wait to be handled. */
  get buffered(): number {
    return this.#events;
  }

  /** Ends it: no event comes after the call. Resolves when the relay has been told, or at once when there is no connection. */
  unsubscribe(): Promise<void> {
    return this.hooks.leave();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.unsubscribe();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<RelayEvent<Events>>> {
    this.#handled();
    const answer = this.#asked.then(() => this.#take());
    this.#asked = answer.catch(() => {});
    return answer;
  }

  async return(): Promise<IteratorResult<RelayEvent<Events>>> {
    this.#handled();
    await this.unsubscribe();
    return { done: true, value: undefined };
  }

  /** @internal */
  push(event: RelayEvent<Events> | undefined, done: () => void): void {
    if (this.#end) return done();
    if (event) this.#events++;
    this.#items.push({ event, done });
    this.#wake?.();
  }

  /** @internal */
  markReady(): void {
    this.#ready.resolve();
  }

  /**
   * What was not handled by then is dropped: as handled if nobody wants it any more, else it comes again after the next start.
   *
   * @internal
   */
  end(how: { readonly error?: RelayError; readonly isHandled: boolean }, early: RelayError): void {
    if (this.#end) return;
    this.#end = how;
    this.#ready.reject(how.error ?? early);
    const rest = this.#items.splice(0);
    this.#events = 0;
    if (how.isHandled) {
      this.#handled();
      for (const { done } of rest) done();
    }
    this.#wake?.();
  }

  async #take(): Promise<IteratorResult<RelayEvent<Events>>> {
    for (;;) {
      const item = this.#items.shift();
      if (item?.event) {
        this.#events--;
        this.#inHand.push(item.done);
        this.hooks.onTaken();
        return { done: false, value: item.event };
      }
      if (item) item.done();
      else if (this.#end?.error) throw this.#end.error;
      else if (this.#end) return { done: true, value: undefined };
      else
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
    }
  }

  #handled(): void {
    for (const done of this.#inHand.splice(0)) done();
  }
}
