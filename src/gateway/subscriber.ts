import type { EntryHeader } from '../wire/envelope.js';
import type { Delivery } from './frames.js';
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
  /** Whatever is newer needs no look at single joins: all of them happened before it. */
  settled: number;
  /** What the pod has dispatched for it and not yet written, and a hash of its offsets. */
  run: Delivery[] = [];
  runHash = 0;
  /** Its client heard its position before CONNECT. */
  wasGreeted = false;
  /** Its client is told positions and gaps. */
  hearsPositions = true;
  /** Applies what moves or ends it: an entry that is no event. */
  onControl: ((header: EntryHeader, at: { readonly ms: number; readonly offset: number }) => void) | undefined;
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
      readonly partition: number;
      readonly epoch: string;
      readonly ms: number;
      readonly offset: number;
    },
  ) {
    this.partition = start.partition;
    this.epoch = start.epoch;
    this.ms = start.ms;
    this.offset = this.settled = start.offset;
  }

  get state(): SubscriberState {
    return this.#state;
  }

  /** Beside what any client may leave unread: of one that calls or serves, whose answers and requests are large. */
  allowance = 0;

  /** More than is kept for it of what can't be given again later: ephemeral events, answers. Live entries are within the limit. */
  get leavesTooMuch(): boolean {
    return this.outbox.unsentBytes - this.pageBytes > MAX_UNSENT_BYTES + BEHIND_BYTES + this.allowance;
  }

  /** It should be given no more of what can wait. */
  get isLoaded(): boolean {
    return this.outbox.unsentBytes - this.pageBytes > MAX_UNSENT_BYTES;
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
    if (offset > this.settled) this.settled = offset;
  }

  /** From `offset` on what goes to the room is for this socket. */
  join(room: string, offset: number): void {
    this.joins.set(room, offset);
    if (offset > this.settled) this.settled = offset;
  }

  /** Carries its place over into a new epoch, of which everything up to `offset` is as it was. */
  rebase(epoch: string, ms: number, offset: number): void {
    this.epoch = epoch;
    if (this.offset > offset) {
      this.ms = ms;
      this.offset = offset;
    }
    for (const [room, joined] of this.joins) if (joined > offset) this.joins.set(room, offset);
    this.settled = Math.min(this.settled, offset);
  }

  /** True if an entry at `offset` is for this socket. */
  wants({ rooms, except }: EntryHeader, offset: number): boolean {
    return offset > this.offset && this.#isInOne(rooms, offset) && !this.#isInOne(except, offset);
  }

  #isInOne(rooms: readonly string[], offset: number): boolean {
    for (const room of rooms) {
      const joined = this.joins.get(room);
      if (joined !== undefined && joined < offset) return true;
    }
    return false;
  }
}
