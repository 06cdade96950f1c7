import type { Logger } from '../core/ports.js';
import { sleep } from '../core/sleep.js';
import type { EventLog, LogGap, Page } from '../log/index.js';
import { Delivery, joinParcels, type Parcel, Slabs } from './frames.js';
import type { GatewayMetrics } from './metrics.js';
import { BEHIND_BYTES } from './outbox.js';
import type { Ring } from './ring.js';
import { mixed, SharedRuns } from './runs.js';
import type { Subscriber } from './subscriber.js';

const PAGE_BYTES = 64 * 1024;
const LOG_PAGE = { entries: 500, bytes: 1_000_000 };
/** Work of one turn, after which other work gets the loop. */
const SLICE_MS = 8;
const STUCK_CHECK_MS = 1000;

interface Progress {
  value: number;
  since: number;
  /** Entries given since it fell behind. */
  given: number;
  usedLog: boolean;
  missedTrimmed: boolean;
  isFirst: boolean;
}

/** What catching up needs of the hub. */
export interface CatchUpSource {
  readonly log: EventLog;
  ring(partition: number): Ring;
  dispatched(partition: number): { readonly epoch: string; readonly ms: number; readonly offset: number };
  tellPosition(subscriber: Subscriber): void;
  tellGap(subscriber: Subscriber, gap: LogGap): void;
}

export interface CatchUpOptions {
  readonly hub: CatchUpSource;
  readonly metrics: GatewayMetrics;
  readonly slowReaderMs: number;
  readonly logger: Logger;
  /** As the hub gives them. */
  readonly withPositions: boolean;
}

/**
 * Brings sockets that are behind up to date, page by page, each page when the one before has left: from the ring, or, what is
 * older, from the log in one pass shared by all who need it. Paced, so that a thousand returning clients don't hold the loop.
 */
export class CatchUp {
  readonly #behind = new Map<Subscriber, Progress>();
  /** Ready for their next page from the ring. */
  readonly #queue = new Set<Subscriber>();
  /** Pages of the ring that several sockets get at the same time. */
  readonly #shared = new SharedRuns();
  /** Need what only the log has, by partition. */
  readonly #cold = new Map<number, Set<Subscriber>>();
  #isPumping = false;
  #isStopped = false;
  /** Ends the wait of a partition's pass. */
  readonly #wakers = new Map<number, () => void>();
  #timer: NodeJS.Timeout | undefined;

  constructor(private readonly options: CatchUpOptions) {}

  get size(): number {
    return this.#behind.size;
  }

  begin(subscriber: Subscriber): void {
    if (subscriber.state !== 'behind' || subscriber.isReplaying) return;
    this.#progressOf(subscriber);
    // the common case: nothing was missed
    if (!subscriber.isPageUnsent && subscriber.offset >= this.options.hub.dispatched(subscriber.partition).offset)
      this.#goLive(subscriber);
    else this.#next(subscriber);
  }

  /** Gives all that was missed at once if it is that little, and the ring has it. */
  giveLittle(subscriber: Subscriber, maxEntries: number, maxBytes: number): void {
    const { hub, metrics } = this.options;
    const ring = hub.ring(subscriber.partition);
    const dispatched = hub.dispatched(subscriber.partition);
    if (subscriber.offset >= dispatched.offset) return;
    if (subscriber.epoch !== dispatched.epoch || !ring.covers(subscriber.offset)) return;
    const { deliveries, control, scanned } = ring.page(subscriber.offset, subscriber.joins, PAGE_BYTES);
    if (control || scanned < dispatched.offset || deliveries.length > maxEntries) return;
    if (deliveries.length > 0) {
      const parcel = joinParcels(deliveries.map((delivery) => delivery.parcel));
      if (parcel.bytes > maxBytes) return;
      subscriber.outbox.write(parcel);
      metrics.delivered.inc({ path: 'ring' }, deliveries.length);
      this.#progressOf(subscriber).given += deliveries.length;
    }
    subscriber.advance(dispatched.ms, scanned);
  }

  #progressOf(subscriber: Subscriber): Progress {
    let progress = this.#behind.get(subscriber);
    if (!progress) {
      const isFirst = subscriber.positionToldAt === 0;
      progress = { value: 0, since: performance.now(), given: 0, usedLog: false, missedTrimmed: false, isFirst };
      this.#behind.set(subscriber, progress);
      this.#watch();
    }
    return progress;
  }

  forget(subscriber: Subscriber): void {
    this.#behind.delete(subscriber);
    this.#queue.delete(subscriber);
    this.#cold.get(subscriber.partition)?.delete(subscriber);
    this.#wakers.get(subscriber.partition)?.();
  }

  stop(): void {
    this.#isStopped = true;
    clearInterval(this.#timer);
  }

  #next(subscriber: Subscriber): void {
    if (subscriber.state !== 'behind' || subscriber.isReplaying || subscriber.isPageUnsent) return;
    this.#queue.add(subscriber);
    if (this.#isPumping) return;
    this.#isPumping = true;
    setImmediate(() => this.#pump());
  }

  #pump(): void {
    const startedAt = performance.now();
    for (const subscriber of this.#queue) {
      this.#queue.delete(subscriber);
      if (subscriber.state === 'behind' && !subscriber.isReplaying) this.#guarded(subscriber);
      if (performance.now() - startedAt > SLICE_MS) break;
    }
    if (this.#queue.size > 0 && !this.#isStopped) setImmediate(() => this.#pump());
    else {
      this.#isPumping = false;
      this.#shared.clear();
    }
  }

  /** What one socket's page throws stops nobody else's: it comes back and begins where it stood. */
  #guarded(subscriber: Subscriber): void {
    try {
      this.#pageFromRing(subscriber);
    } catch (error) {
      this.options.logger.error({ event: 'catch_up_failed', err: error }, 'a page could not be given');
      subscriber.outbox.closeTransport();
    }
  }

  #goLive(subscriber: Subscriber): void {
    const { hub, metrics } = this.options;
    const progress = this.#behind.get(subscriber);
    this.#behind.delete(subscriber);
    subscriber.move('live');
    if (!progress?.isFirst) return;
    metrics.recoveredEvents.observe(progress.given);
    if (progress.given > 0 || progress.missedTrimmed)
      metrics.recoveries.inc({ result: progress.missedTrimmed ? 'gap' : progress.usedLog ? 'log' : 'ring' });
    if (subscriber.wasGreeted) subscriber.positionToldAt = performance.now();
    else hub.tellPosition(subscriber);
  }

  #pageFromRing(subscriber: Subscriber): void {
    const { hub } = this.options;
    const ring = hub.ring(subscriber.partition);
    const dispatched = hub.dispatched(subscriber.partition);
    if (subscriber.offset >= dispatched.offset) return this.#goLive(subscriber);
    if (!ring.covers(subscriber.offset)) return this.#goCold(subscriber);
    const page = ring.page(subscriber.offset, subscriber.joins, PAGE_BYTES);
    const isAll = page.scanned >= dispatched.offset;
    const last = isAll ? dispatched : (ring.get(page.scanned) ?? { ms: subscriber.ms, offset: page.scanned });
    this.#give(subscriber, page.deliveries, 'ring', this.#shared);
    subscriber.advance(last.ms, page.scanned);
    if (page.control) this.#apply(subscriber, page.control);
    if (subscriber.state !== 'behind') return;
    if (isAll && subscriber.outbox.unsentBytes <= BEHIND_BYTES) this.#goLive(subscriber);
    else this.#next(subscriber);
  }

  /** It was not there when others were moved or ended: its turn comes here. */
  #apply(subscriber: Subscriber, control: Delivery): void {
    subscriber.onControl?.(control.header, control);
  }

  /** Writes a page; the next one waits until it has left. */
  #give(subscriber: Subscriber, deliveries: readonly Delivery[], path: 'ring' | 'log', shared: SharedRuns): void {
    if (deliveries.length === 0) return;
    const { metrics } = this.options;
    const progress = this.#behind.get(subscriber);
    if (progress) progress.given += deliveries.length;
    metrics.delivered.inc({ path }, deliveries.length);
    let hash = 0;
    for (const { offset } of deliveries) hash = mixed(hash, offset);
    this.#write(subscriber, shared.parcelOf(deliveries, hash));
  }

  #write(subscriber: Subscriber, parcel: Parcel): void {
    subscriber.positionToldAt = performance.now();
    subscriber.isPageUnsent = true;
    const page = ++subscriber.pages;
    subscriber.pageBytes += parcel.bytes;
    subscriber.outbox.write(parcel, () => {
      subscriber.pageBytes -= parcel.bytes;
      if (page !== subscriber.pages) return;
      subscriber.isPageUnsent = false;
      this.#next(subscriber);
      this.#wakers.get(subscriber.partition)?.();
    });
  }

  // --- older than the ring

  #goCold(subscriber: Subscriber): void {
    const { partition } = subscriber;
    const progress = this.#behind.get(subscriber);
    if (progress) progress.usedLog = true;
    const waiting = this.#cold.get(partition);
    if (waiting) {
      waiting.add(subscriber);
      // the pass may be waiting for somebody who doesn't read
      this.#wakers.get(partition)?.();
      return;
    }
    const cold = new Set([subscriber]);
    this.#cold.set(partition, cold);
    void this.#pass(partition, cold).finally(() => this.#cold.delete(partition));
  }

  /** One pass over the log for all who need it, oldest first. It ends when nobody waits, never because Redis failed. */
  async #pass(partition: number, cold: Set<Subscriber>): Promise<void> {
    const { hub, logger } = this.options;
    let failures = 0;
    let previous = -1;
    while (cold.size > 0 && !this.#isStopped) {
      const oldest = this.#oldest(partition, cold);
      if (!oldest) {
        await this.#untilSomethingLeft(partition);
        continue;
      }
      let page: Page;
      try {
        page = await hub.log.page(partition, oldest, LOG_PAGE);
        failures = 0;
      } catch (error) {
        if (failures++ === 0)
          logger.warn({ event: 'catch_up_waits', partition, err: error }, 'the log cannot be read; catching up waits');
        await sleep(100 + Math.random() * Math.min(2000, 100 * 2 ** failures));
        continue;
      }
      if (page.epoch !== hub.dispatched(partition).epoch) {
        // the reader will see the new epoch in a moment, and give everybody their place in it
        await sleep(50);
        continue;
      }
      if (oldest.offset === previous) await sleep(20);
      previous = oldest.offset;
      try {
        await this.#share(page, oldest.offset, cold);
      } catch (error) {
        logger.error({ event: 'catch_up_failed', partition, err: error }, 'a page could not be given');
        await sleep(1000);
      }
    }
  }

  /** Until a page has left, or a socket may have gone. */
  async #untilSomethingLeft(partition: number): Promise<void> {
    const woken = new AbortController();
    this.#wakers.set(partition, () => woken.abort());
    await sleep(500, woken.signal);
    this.#wakers.delete(partition);
  }

  /** The oldest place among those that can take a page. Whoever the ring covers by now leaves. */
  #oldest(partition: number, cold: Set<Subscriber>): { ms: number; offset: number } | undefined {
    const ring = this.options.hub.ring(partition);
    const { offset: dispatched } = this.options.hub.dispatched(partition);
    let oldest: Subscriber | undefined;
    for (const subscriber of cold) {
      if (subscriber.state !== 'behind' || subscriber.isReplaying) cold.delete(subscriber);
      else if (subscriber.isPageUnsent) continue;
      else if (ring.covers(subscriber.offset) || subscriber.offset >= dispatched) {
        cold.delete(subscriber);
        this.#next(subscriber);
      } else if (!oldest || subscriber.offset < oldest.offset) oldest = subscriber;
    }
    return oldest && { ms: oldest.ms, offset: oldest.offset };
  }

  async #share(page: Page, from: number, cold: Set<Subscriber>): Promise<void> {
    const { hub } = this.options;
    const { partition, epoch } = page;
    // what this pod has not dispatched yet comes live
    const limit = hub.dispatched(partition).offset;
    const place = this.options.withPositions ? { epoch, partition } : undefined;
    const slabs = new Slabs();
    const deliveries = page.entries
      .filter((entry) => entry.offset <= limit)
      .map((entry) => new Delivery(entry, place, slabs));
    const reached = page.isLast ? page.newest : page.scanned;
    const end = reached.offset <= limit ? reached : hub.dispatched(partition);
    const shared = new SharedRuns();
    let sliceFrom = performance.now();
    for (const subscriber of [...cold]) {
      if (subscriber.state !== 'behind' || subscriber.isReplaying || subscriber.isPageUnsent) continue;
      if (subscriber.offset < from || subscriber.offset >= end.offset || subscriber.epoch !== epoch) continue;
      this.#tellMissing(subscriber, page);
      const wanted = deliveries.filter(({ header, offset }) => subscriber.wants(header, offset));
      const control = wanted.findIndex(({ header }) => header.kind !== 'event');
      this.#give(subscriber, control < 0 ? wanted : wanted.slice(0, control), 'log', shared);
      // what it does may change what is for this socket: it goes on behind it
      const last = wanted[control] ?? end;
      subscriber.advance(last.ms, last.offset);
      if (control >= 0) this.#apply(subscriber, wanted[control] as Delivery);
      if (performance.now() - sliceFrom > SLICE_MS) {
        await new Promise(setImmediate);
        sliceFrom = performance.now();
      }
    }
  }

  /** What was trimmed or deleted before this socket came by. */
  #tellMissing(subscriber: Subscriber, page: Page): void {
    const { hub } = this.options;
    const { partition, epoch, first } = page;
    const missing = [...page.holes];
    if (subscriber.offset + 1 < first) missing.unshift({ from: subscriber.offset + 1, to: first - 1 });
    for (const { from, to } of missing) {
      if (to <= subscriber.offset) continue;
      const progress = this.#behind.get(subscriber);
      if (progress) progress.missedTrimmed = true;
      const ms = subscriber.ms;
      hub.tellGap(subscriber, {
        partition,
        reason: 'trimmed',
        from: { epoch, ms, offset: Math.max(from, subscriber.offset + 1) },
        to: { epoch, ms: page.entries[0]?.ms ?? ms, offset: to },
      });
    }
  }

  // --- readers that don't read

  #watch(): void {
    if (this.#timer || this.#isStopped) return;
    this.#timer = setInterval(() => {
      if (this.#behind.size === 0) {
        clearInterval(this.#timer);
        this.#timer = undefined;
        return;
      }
      this.#closeStuck();
    }, STUCK_CHECK_MS);
    this.#timer.unref();
  }

  #closeStuck(): void {
    const { slowReaderMs, metrics } = this.options;
    const now = performance.now();
    for (const [subscriber, progress] of this.#behind) {
      const value = subscriber.outbox.progress;
      if (!subscriber.isPageUnsent || value !== progress.value) {
        progress.value = value;
        progress.since = now;
      } else if (now - progress.since >= slowReaderMs) subscriber.closeAsSlow(metrics, 'nothing drained');
    }
  }
}
