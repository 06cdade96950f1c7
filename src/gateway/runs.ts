import { type Delivery, joinParcels, type Parcel } from './frames.js';
import type { Subscriber } from './subscriber.js';

/** Work of one turn, after which other work gets the loop. */
const SLICE_MS = 8;
/** Writes between two looks at the clock. */
const STRIDE = 16;
/** What may be shared is kept for that long; beyond it sharing is not worth the memory. */
const MAX_SHARED_BYTES = 8 * 1024 * 1024;

/** Mixes an entry into the hash of a run of entries. */
export function mixed(hash: number, offset: number): number {
  return (Math.imul(hash, 0x01000193) ^ offset) | 0;
}

/** Sockets that get the same entries get them from the same bytes: equal runs are joined once. */
export class SharedRuns {
  readonly #known = new Map<number, { readonly run: readonly Delivery[]; readonly parcel: Parcel }>();
  #bytes = 0;

  /** @param hash of the run's offsets, by `mixed`; the run must not change any more */
  parcelOf(run: readonly Delivery[], hash: number): Parcel {
    if (run.length === 1) return (run[0] as Delivery).parcel;
    const known = this.#known.get(hash);
    if (known && isSame(known.run, run)) return known.parcel;
    const parcel = joinParcels(run.map((delivery) => delivery.parcel));
    if (this.#bytes + parcel.bytes > MAX_SHARED_BYTES) this.clear();
    this.#known.set(hash, { run, parcel });
    this.#bytes += parcel.bytes;
    return parcel;
  }

  clear(): void {
    this.#known.clear();
    this.#bytes = 0;
  }
}

function isSame(a: readonly Delivery[], b: readonly Delivery[]): boolean {
  if (a.length !== b.length) return false;
  for (let index = 0; index < a.length; index++) if (a[index] !== b[index]) return false;
  return true;
}

/**
 * What one read of a partition brought, for each socket: it is collected entry by entry and leaves each socket in one write.
 * `give` writes a run; nothing that it throws stops the others.
 */
export class Runs {
  readonly #shared = new SharedRuns();
  #waiting: Subscriber[] = [];
  #next = 0;

  constructor(
    private readonly give: (subscriber: Subscriber, run: readonly Delivery[], parcel: Parcel) => void,
    private readonly onError: (subscriber: Subscriber, error: unknown) => void,
  ) {}

  add(subscriber: Subscriber, delivery: Delivery): void {
    if (subscriber.run.length === 0) {
      this.#waiting.push(subscriber);
      subscriber.runHash = 0;
    }
    subscriber.run.push(delivery);
    subscriber.runHash = mixed(subscriber.runHash, delivery.offset);
  }

  /** Writes what waits for this socket, so that something else may be written to it. */
  flushOne(subscriber: Subscriber): void {
    const { run } = subscriber;
    if (run.length === 0) return;
    // equal runs are compared later: this one is not used again
    subscriber.run = [];
    if (subscriber.state !== 'live') return;
    try {
      this.give(subscriber, run, this.#shared.parcelOf(run, subscriber.runHash));
    } catch (error) {
      this.onError(subscriber, error);
    }
  }

  /** Writes everything, other work gets the loop between sockets. `undefined`: it is done. */
  flush(): Promise<void> | undefined {
    return this.#flushSlice() ? undefined : this.#flushLater();
  }

  /** Writes everything at once: what comes next must not overtake it. */
  flushNow(): void {
    while (!this.#flushSlice(Number.POSITIVE_INFINITY));
  }

  async #flushLater(): Promise<void> {
    do await new Promise(setImmediate);
    while (!this.#flushSlice());
  }

  #flushSlice(sliceMs = SLICE_MS): boolean {
    const startedAt = performance.now();
    while (this.#next < this.#waiting.length) {
      this.flushOne(this.#waiting[this.#next++] as Subscriber);
      if (this.#next % STRIDE === 0 && performance.now() - startedAt > sliceMs) return false;
    }
    this.#waiting = [];
    this.#next = 0;
    this.#shared.clear();
    return true;
  }
}
