import type { RelayError } from '../core/errors.js';
import type { EventMap, RelayEvent } from './events.js';
import { further } from './place.js';
import { Replay } from './replay.js';
import type { Subscription } from './subscription.js';

/**
 * A room with its subscriptions, and how far it is: `from` a position that has to be caught up from, or where the whole
 * client is.
 */
export class Room<Events extends EventMap> {
  readonly subscriptions = new Set<Subscription<Events>>();
  /** The relay has it, on this connection. */
  isJoined = false;
  /** Something of it came: a new start would leave a hole. */
  hasBegun = false;
  /** Of its present replay: something came that no buffer could take. */
  isCut = false;
  /**
   * The relay may have it from a catch-up that was cut, or as one of the token's: it is left before it is caught up, and what
   * it brings until then comes again in the replay. Else that would come before what is older.
   */
  isStale = false;
  joining: { readonly session: number; readonly end: Promise<void> } | undefined;
  readonly replay = new Replay();
  /** A catch-up begins behind it; `undefined`: none is due. */
  #from: string | undefined;
  /** What the store may say until the catch-up was handled: never ahead of what was. */
  #safe: string | undefined;
  /** Taken up to here by a catch-up, while the rest of the client may be behind. */
  #taken: string | undefined;
  /** The same, and handled. */
  #reached: string | undefined;

  constructor(readonly name: string) {}

  get from(): string | undefined {
    return this.#from;
  }

  get isFull(): boolean {
    for (const { buffered, bufferSize } of this.subscriptions) if (buffered >= bufferSize) return true;
    return false;
  }

  /** Worth coming back for: half of its buffers; all of them for a replay that was cut, as that begins anew each time. */
  get hasSpace(): boolean {
    const share = this.isCut ? 0 : 0.5;
    for (const { buffered, bufferSize } of this.subscriptions) if (buffered > bufferSize * share) return false;
    return true;
  }

  /** It has to be caught up behind `from`; what was handled is known up to `safe`. A catch-up that is due already stays. */
  catchUp(from: string | undefined, safe: string | undefined): void {
    this.isJoined = false;
    if (this.#from !== undefined || from === undefined) return;
    this.#from = further(from, this.#taken);
    this.#safe = this.storedAt(safe) ?? safe;
    this.replay.clear();
  }

  /** The place is none that the relay knows. */
  startAfresh(): void {
    this.#from = undefined;
    this.#safe = undefined;
    this.replay.clear();
  }

  /** The relay's answer: all up to `position` has been sent. `onSettled`: all of that was handled. */
  joined(position: string, onSettled: () => void): void {
    this.isJoined = true;
    this.hasBegun = true;
    this.#taken = position;
    for (const subscription of this.subscriptions) subscription.markReady();
    this.#from = undefined;
    this.replay.clear();
    this.whenHandled(() => {
      // another catch-up may have begun meanwhile
      if (this.#from !== undefined) return;
      this.#safe = undefined;
      this.#reached = position;
      onSettled();
    });
  }

  /** What the store says of it, beside the client's own position: `null` is nothing. */
  storedAt(position: string | undefined): string | null {
    if (this.#safe !== undefined) return this.#safe;
    const at = further(position, this.#reached);
    return at === position ? null : (at ?? null);
  }

  push(event: RelayEvent<Events>, done: () => void): void {
    this.hasBegun = true;
    for (const subscription of this.subscriptions) subscription.push(event, done);
  }

  /** Everything before it was. */
  whenHandled(done: () => void): void {
    let left = this.subscriptions.size;
    for (const subscription of this.subscriptions)
      subscription.push(undefined, () => {
        if (--left === 0) done();
      });
  }

  end(how: { readonly error?: RelayError; readonly isHandled: boolean }, early: RelayError): void {
    for (const subscription of this.subscriptions) subscription.end(how, early);
  }
}
