import type { Identity } from '../admission/index.js';
import type { DisconnectCode, GatewayMetrics } from './metrics.js';
import { BEHIND_BYTES, MAX_UNSENT_BYTES, type Outbox } from './outbox.js';

/**
 * behind  it has entries to catch up with: they come page by page, as its transport drains
 * live    what the pod dispatches is written to it at once
 * closed  its connection is gone
 *
 *          caught up            too much unsent
 * behind ─────────────▶ live ─────────────────▶ behind
 *    └────────── closed ◀──────────┘
 */
export type SubscriberState = 'behind' | 'live' | 'closed';

const MOVES: Readonly<Record<SubscriberState, readonly SubscriberState[]>> = {
  behind: ['live', 'closed'],
  live: ['behind', 'closed'],
  closed: [],
};

/** One socket's place in its partition: the rooms it is in, each from a definite position on, and what it has been given. */
export class Subscriber {
  #state: SubscriberState = 'behind';
  /** Room (scoped by tenant) → offset at which it was joined: what is newer belongs to the socket. */
  readonly joins = new Map<string, number>();
  identity: Identity;
  epoch: string;
  /** Newest entry that was handed to the connection, or that the client brought as its own. */
  ms: number;
  offset: number;
  /** When it last was told a position, monotonic ms. */
  positionToldAt = 0;
  /** A `subscribe.from` is being replayed: nothing else may be delivered before it is done. */
  isReplaying = false;
  /** A page was written and has not left yet. */
  isPageUnsent = false;
  /** Bytes of logged entries that were written together and have not all left: no fault of their reader. */
  pageBytes = 0;
  /** Pages written so far: an older one that leaves says nothing of the newest. */
  pages = 0;
  /** Why the relay ended its connection, if it did. */
  endCode: DisconnectCode | undefined;
  readonly partition: number;

  constructor(
    readonly outbox: Outbox,
    start: {
      readonly identity: Identity;
      readonly partition: number;
      readonly epoch: string;
      readonly ms: number;
      readonly offset: number;
    },
  ) {
    this.identity = start.identity;
    this.partition = start.partition;
    this.epoch = start.epoch;
    this.ms = start.ms;
    this.offset = start.offset;
  }

  get state(): SubscriberState {
    return this.#state;
  }

  /** More than is kept for it of what can't be given again later: ephemeral events, answers. Live entries are within the limit. */
  get leavesTooMuch(): boolean {
    return this.outbox.unsentBytes - this.pageBytes > MAX_UNSENT_BYTES + BEHIND_BYTES;
  }

  move(next: SubscriberState): void {
    if (!MOVES[this.#state].includes(next)) throw new Error(`a subscriber cannot move from ${this.#state} to ${next}`);
    this.#state = next;
  }

  /** Tells the reason and closes the transport, after which a stock client comes back. False: it was closing already. */
  close(endCode: DisconnectCode, closing: { code: string; reason: string; reconnect: boolean }): boolean {
    if (!this.outbox.isOpen) return false;
    this.endCode = endCode;
    this.outbox.emit('holdfast:closing', closing);
    this.outbox.closeTransport();
    return true;
  }

  /** Closes a connection whose client leaves more unread than is kept for it. */
  closeAsSlow(metrics: GatewayMetrics, reason: string): void {
    if (this.close('slow_consumer', { code: 'slow_consumer', reason, reconnect: true })) metrics.slowClosed.inc();
  }

  /** Everything up to here was handed over, or is not for it. */
  advance(ms: number, offset: number): void {
    if (offset <= this.offset) return;
    this.ms = ms;
    this.offset = offset;
  }

  /** True if an entry at `offset` that went to `rooms` is for this socket. */
  wants(rooms: readonly string[], offset: number): boolean {
    if (offset <= this.offset) return false;
    for (const room of rooms) {
      const joined = this.joins.get(room);
      if (joined !== undefined && joined < offset) return true;
    }
    return false;
  }
}
