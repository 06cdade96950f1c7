import type { Delivery } from './frames.js';

const INITIAL_SLOTS = 1024;

interface RoomIndex {
  /** Index of the oldest offset that is still in the ring. */
  head: number;
  offsets: number[];
}

export interface RingPage {
  readonly deliveries: readonly Delivery[];
  /** The page ends with this one, which is no event: what it does at the socket may change what is for it. */
  readonly control: Delivery | undefined;
  /** Everything up to here was looked at. */
  readonly scanned: number;
}

/**
 * The newest entries of one partition, without holes and bounded in bytes, so "is it in here?" is a comparison of offsets.
 * An index per room makes a page for one socket cost what it brings, not what the ring holds.
 */
export class Ring {
  /** Oldest and next offset; equal when the ring is empty. */
  #first = 1;
  #next = 1;
  #bytes = 0;
  /** By offset modulo its length, a power of two: what is between the two stands here, whatever else is empty. */
  #items: (Delivery | undefined)[] = new Array(INITIAL_SLOTS);
  readonly #rooms = new Map<string, RoomIndex>();

  constructor(private readonly maxBytes: number) {}

  get first(): number {
    return this.#first;
  }

  get next(): number {
    return this.#next;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get(offset: number): Delivery | undefined {
    return offset >= this.#first && offset < this.#next ? this.#items[offset & (this.#items.length - 1)] : undefined;
  }

  /** True if everything behind `offset` is here. */
  covers(offset: number): boolean {
    return offset + 1 >= this.#first && offset < this.#next;
  }

  /** Forgets all; the next entry is expected at `next`. */
  reset(next: number): void {
    this.#items = new Array(INITIAL_SLOTS);
    this.#rooms.clear();
    this.#bytes = 0;
    this.#first = this.#next = next;
  }

  push(delivery: Delivery): void {
    const { offset, size } = delivery;
    if (offset !== this.#next) this.reset(offset);
    if (offset - this.#first >= this.#items.length) this.#grow();
    this.#items[offset & (this.#items.length - 1)] = delivery;
    this.#next = offset + 1;
    this.#bytes += size;
    for (const room of delivery.header.rooms) {
      const index = this.#rooms.get(room);
      if (index) index.offsets.push(offset);
      else this.#rooms.set(room, { head: 0, offsets: [offset] });
    }
    while (this.#bytes > this.maxBytes && this.#next - this.#first > 1) this.#evict();
  }

  /**
   * Entries behind `after` for somebody in `rooms` (room → offset at which it was joined), at most `maxBytes` of them but at
   * least one.
   */
  page(after: number, rooms: ReadonlyMap<string, number>, maxBytes: number): RingPage {
    const cursors: { offsets: readonly number[]; at: number }[] = [];
    for (const [room, joined] of rooms) {
      const index = this.#rooms.get(room);
      if (!index) continue;
      const at = lowerBound(index.offsets, index.head, Math.max(after, joined) + 1);
      if (at < index.offsets.length) cursors.push({ offsets: index.offsets, at });
    }
    const deliveries: Delivery[] = [];
    let bytes = 0;
    for (;;) {
      let offset = Number.POSITIVE_INFINITY;
      for (const { offsets, at } of cursors) {
        const next = offsets[at];
        if (next !== undefined && next < offset) offset = next;
      }
      if (offset === Number.POSITIVE_INFINITY) return { deliveries, control: undefined, scanned: this.#next - 1 };
      const delivery = this.#items[offset & (this.#items.length - 1)] as Delivery;
      if (deliveries.length > 0 && bytes + delivery.size > maxBytes)
        return { deliveries, control: undefined, scanned: offset - 1 };
      for (const cursor of cursors) if (cursor.offsets[cursor.at] === offset) cursor.at++;
      if (isExcepted(delivery, rooms)) continue;
      if (delivery.header.kind !== 'event') return { deliveries, control: delivery, scanned: offset };
      deliveries.push(delivery);
      bytes += delivery.size;
    }
  }

  #grow(): void {
    const old = this.#items;
    this.#items = new Array(2 * old.length);
    for (let offset = this.#first; offset < this.#next; offset++)
      this.#items[offset & (this.#items.length - 1)] = old[offset & (old.length - 1)];
  }

  #evict(): void {
    const slot = this.#first++ & (this.#items.length - 1);
    const delivery = this.#items[slot] as Delivery;
    this.#items[slot] = undefined;
    this.#bytes -= delivery.size;
    for (const room of delivery.header.rooms) {
      const index = this.#rooms.get(room);
      if (!index) continue;
      index.head++;
      if (index.head === index.offsets.length) this.#rooms.delete(room);
      else if (index.head > 64 && index.head * 2 > index.offsets.length) {
        index.offsets.splice(0, index.head);
        index.head = 0;
      }
    }
  }
}

function isExcepted({ header, offset }: Delivery, rooms: ReadonlyMap<string, number>): boolean {
  return header.except.some((room) => (rooms.get(room) ?? Number.POSITIVE_INFINITY) < offset);
}

/** Index of the first of `offsets` (ascending) from `head` on that is ≥ `wanted`. */
function lowerBound(offsets: readonly number[], head: number, wanted: number): number {
  let low = head;
  let high = offsets.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((offsets[middle] as number) < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}
