import type { Logger } from '../core/ports.js';
import type { Entry, EpochTurn, EventLog, LogGap, ReaderHandler } from '../log/index.js';
import { formatPosition, type Position } from '../wire/position.js';
import { CatchUp } from './catch-up.js';
import { Delivery, encodeEvent, type Parcel, Slabs } from './frames.js';
import type { GatewayMetrics } from './metrics.js';
import { BEHIND_BYTES } from './outbox.js';
import { Ring } from './ring.js';
import { Runs } from './runs.js';
import type { Subscriber } from './subscriber.js';

/** With CONNECT and the headers they fit a TCP segment. */
const LITTLE_ENTRIES = 12;
const LITTLE_BYTES = 1000;
const POSITION_EVENT = Buffer.from('["holdfast:position"]');
const NOBODY: readonly Subscriber[] = [];

interface PartitionView {
  readonly ring: Ring;
  /** Of the ring's frames. */
  readonly slabs: Slabs;
  readonly subscribers: Set<Subscriber>;
  /** What was dispatched and is not written yet. */
  readonly runs: Runs;
  epoch: string;
  /** Of the positions of its entries; one for all of an epoch. */
  place: { readonly epoch: string; readonly partition: number };
  /** Newest dispatched entry. */
  ms: number;
  offset: number;
}

export interface HubOptions {
  readonly ringBytes: number;
  /** Events end with their position; without, clients can't say where they stand. Default true. */
  readonly withPositions?: boolean;
  readonly metrics: GatewayMetrics;
  readonly logger: Logger;
  readonly slowReaderMs: number;
  readonly onFenced: () => void;
  /** A new epoch: resume records must be written again. */
  readonly onEpoch: () => void;
}

/** Takes what the log's readers bring and hands it to the sockets of this pod, in the log's order. */
export class Hub implements ReaderHandler {
  readonly #views: PartitionView[] = [];
  readonly #rooms = new Map<string, Set<Subscriber>>();
  readonly #catchUp: CatchUp;
  #log: EventLog | undefined;

  constructor(private readonly options: HubOptions) {
    const { metrics, slowReaderMs, logger, withPositions = true } = options;
    this.#catchUp = new CatchUp({ hub: this, metrics, slowReaderMs, logger, withPositions });
  }

  /** The log whose readers call this hub; they may call before it has started. */
  attach(log: EventLog): void {
    this.#log = log;
  }

  get log(): EventLog {
    if (!this.#log) throw new Error('the hub has no log yet');
    return this.#log;
  }

  get ringBytes(): number {
    return this.#views.reduce((sum, view) => sum + view.ring.bytes, 0);
  }

  get subscriberCount(): number {
    return this.#views.reduce((sum, view) => sum + view.subscribers.size, 0);
  }

  get behindCount(): number {
    return this.#catchUp.size;
  }

  *subscribers(): IterableIterator<Subscriber> {
    for (const view of this.#views) yield* view.subscribers;
  }

  ring(partition: number): Ring {
    return this.#view(partition).ring;
  }

  /** Newest entry that was dispatched here, as of now. */
  dispatched(partition: number): { readonly epoch: string; readonly ms: number; readonly offset: number } {
    const { epoch, ms, offset } = this.#view(partition);
    return { epoch, ms, offset };
  }

  membersOf(room: string): ReadonlySet<Subscriber> | undefined {
    return this.#rooms.get(room);
  }

  /** Fills the rings with what was dispatched before this process, so that whoever returns after a deploy needs no log reads. */
  async preload(maxEntries: number): Promise<void> {
    for (let partition = 0; partition < this.log.partitionCount; partition++) {
      const view = this.#view(partition);
      const limits = { entries: maxEntries, bytes: this.options.ringBytes / 2 };
      for (const entry of await this.log.recent(partition, view, limits)) this.#remember(view, entry);
      if (view.ring.next !== view.offset + 1) view.ring.reset(view.offset + 1);
    }
  }

  // --- the log's readers

  onEntry(entry: Entry, partition: number): void {
    const view = this.#view(partition);
    const delivery = this.#remember(view, entry);
    view.ms = entry.ms;
    view.offset = entry.offset;
    const { kind, rooms, except } = entry.header;
    if (kind !== 'event') return this.#apply(view, delivery);
    const { runs } = view;
    const { offset } = delivery;
    if (rooms.length === 1 && except.length === 0) {
      // the hot path: whoever is in the room, and has been for longer than since this entry, gets it
      for (const subscriber of this.#rooms.get(rooms[0] as string) ?? NOBODY)
        if (subscriber.state === 'live' && (offset > subscriber.settled || subscriber.wants(entry.header, offset)))
          runs.add(subscriber, delivery);
      return;
    }
    for (const subscriber of this.#targets(delivery)) runs.add(subscriber, delivery);
  }

  /** What one read brought is written, each socket's share in one piece. */
  onBatchEnd(partition: number): Promise<void> | undefined {
    return this.#view(partition).runs.flush();
  }

  onGap(gap: LogGap): void {
    const view = this.#view(gap.partition);
    view.runs.flushNow();
    if (gap.reason === 'trimmed') {
      view.ms = gap.to.ms;
      view.offset = gap.to.offset;
      view.ring.reset(gap.to.offset + 1);
    }
    for (const subscriber of view.subscribers) {
      if (gap.reason === 'epoch') this.tellGap(subscriber, gap);
      // whoever is behind meets what was trimmed by itself, when it gets there; whoever is ahead has had it
      else if (subscriber.state === 'live' && subscriber.offset < gap.to.offset) {
        const offset = Math.max(gap.from.offset, subscriber.offset + 1);
        this.tellGap(subscriber, { ...gap, from: { ...gap.from, offset } });
      }
    }
  }

  onEpoch(turn: EpochTurn): void {
    const view = this.#view(turn.partition);
    const { ms, offset } = turn.survived;
    view.runs.flushNow();
    view.epoch = turn.to;
    view.place = { epoch: turn.to, partition: turn.partition };
    view.ms = ms;
    view.offset = offset;
    view.ring.reset(offset + 1);
    for (const subscriber of view.subscribers) subscriber.rebase(turn.to, ms, offset);
    this.options.onEpoch();
  }

  onFenced(): void {
    this.options.onFenced();
  }

  // --- sockets

  /** From here on the socket gets what its rooms bring: at first what it has missed, then what comes. */
  add(subscriber: Subscriber): void {
    const view = this.#view(subscriber.partition);
    view.subscribers.add(subscriber);
    for (const room of subscriber.joins.keys()) this.#index(subscriber, room);
    this.#catchUp.begin(subscriber);
  }

  /**
   * Immediately before CONNECT: a little that it missed, and where it stands, go in front of it, in one TCP segment with it. So
   * a connection that flaps within milliseconds still makes progress, and one write per connect is enough.
   */
  greet(subscriber: Subscriber, namespace: string): void {
    subscriber.outbox.inOneSegment(() => {
      this.#catchUp.giveLittle(subscriber, LITTLE_ENTRIES, LITTLE_BYTES);
      const { epoch, partition, ms, offset } = subscriber;
      const view = this.#view(partition);
      if (!subscriber.hearsPositions || epoch !== view.epoch || offset < view.offset) return;
      subscriber.wasGreeted = true;
      subscriber.outbox.write(encodeEvent(POSITION_EVENT, [], formatPosition(epoch, partition, ms, offset), namespace));
    });
  }

  /** For a socket on its way in: carries its place over if the log began a new epoch meanwhile, and says what is gone. */
  carryOver(subscriber: Subscriber): LogGap | undefined {
    const { partition, epoch, ms, offset } = subscriber;
    const view = this.#view(partition);
    if (epoch === view.epoch) return undefined;
    const here = this.log.resolve({ epoch, partition, ms, offset });
    const place = here.kind === 'invalid' ? view : here;
    subscriber.rebase(view.epoch, place.ms, place.offset);
    return here.kind === 'epoch' ? epochGap({ epoch, partition, ms, offset }, here.offset) : undefined;
  }

  remove(subscriber: Subscriber): void {
    if (subscriber.state === 'closed') return;
    subscriber.move('closed');
    this.#view(subscriber.partition).subscribers.delete(subscriber);
    for (const room of subscriber.joins.keys()) this.#unindex(subscriber, room);
    this.#catchUp.forget(subscriber);
  }

  /** Where somebody who comes now begins. */
  newest(partition: number): { epoch: string; ms: number; offset: number } {
    const { epoch, ms, offset } = this.#view(partition);
    return { epoch, ...this.joinPosition({ partition, epoch, ms, offset }) };
  }

  /** Where a join made now takes effect: nothing at or below it belongs to the room's new member. */
  joinPosition(subscriber: { partition: number; offset: number; ms: number; epoch: string }): {
    ms: number;
    offset: number;
  } {
    const view = this.#view(subscriber.partition);
    let best: { ms: number; offset: number } = view;
    const newest = this.log.newest(subscriber.partition);
    if (newest.epoch === view.epoch && newest.offset > best.offset) best = newest;
    if (subscriber.epoch === view.epoch && subscriber.offset > best.offset) best = subscriber;
    return { ms: best.ms, offset: best.offset };
  }

  join(subscriber: Subscriber, room: string, offset: number): void {
    if (subscriber.joins.has(room)) return;
    subscriber.join(room, offset);
    if (subscriber.state !== 'closed') this.#index(subscriber, room);
  }

  leave(subscriber: Subscriber, room: string): void {
    if (subscriber.joins.delete(room)) this.#unindex(subscriber, room);
  }

  /** What was handed to the socket's connection up to now. */
  positionOf(subscriber: Subscriber): string {
    this.flush(subscriber);
    const view = this.#view(subscriber.partition);
    const isAhead = subscriber.state !== 'live' || subscriber.offset > view.offset;
    const at = isAhead ? subscriber : view;
    return formatPosition(subscriber.epoch, subscriber.partition, at.ms, at.offset);
  }

  /** What was dispatched for it is written: whatever is written next comes after that. */
  flush(subscriber: Subscriber): void {
    this.#view(subscriber.partition).runs.flushOne(subscriber);
  }

  tellPosition(subscriber: Subscriber): void {
    if (!subscriber.hearsPositions) return;
    this.flush(subscriber);
    subscriber.positionToldAt = performance.now();
    subscriber.outbox.emit('holdfast:position', this.positionOf(subscriber));
  }

  tellGap(subscriber: Subscriber, gap: LogGap): void {
    const { partition, reason, from, to } = gap;
    this.options.metrics.gaps.inc({ reason });
    if (!subscriber.hearsPositions) return;
    this.flush(subscriber);
    subscriber.outbox.emit('holdfast:gap', {
      partition,
      from: formatPosition(from.epoch, partition, from.ms, from.offset),
      to: formatPosition(to.epoch, partition, to.ms, to.offset),
      reason,
    });
  }

  /** Stops live delivery to a socket while `replay` writes to it, then lets it catch up. */
  async pausedDuring<T>(subscriber: Subscriber, replay: () => Promise<T>): Promise<T> {
    subscriber.isReplaying = true;
    if (subscriber.state === 'live') {
      this.flush(subscriber);
      const { ms, offset } = this.#view(subscriber.partition);
      this.#fallBehind(subscriber, ms, offset);
    }
    try {
      return await replay();
    } finally {
      subscriber.isReplaying = false;
      this.#catchUp.begin(subscriber);
    }
  }

  stop(): void {
    this.#catchUp.stop();
  }

  // --- inside

  #view(partition: number): PartitionView {
    let view = this.#views[partition];
    if (!view) {
      const { epoch, ms, offset } = this.log.dispatched(partition);
      if (epoch === '') throw new Error('the log has not been looked at yet');
      const runs = new Runs(
        (subscriber, run, parcel) => this.#give(subscriber, run, parcel),
        (subscriber, error) => this.#failed(subscriber, error),
      );
      const ring = new Ring(this.options.ringBytes);
      view = { ring, slabs: new Slabs(), subscribers: new Set(), runs, epoch, place: { epoch, partition }, ms, offset };
      view.ring.reset(offset + 1);
      this.#views[partition] = view;
    }
    return view;
  }

  #remember(view: PartitionView, entry: Entry): Delivery {
    const { withPositions = true } = this.options;
    const delivery = new Delivery(entry, withPositions ? view.place : undefined, view.slabs);
    view.ring.push(delivery);
    return delivery;
  }

  /** Live sockets that an entry is for, each once. */
  #targets({ header, offset }: Delivery): Set<Subscriber> {
    const targets = new Set<Subscriber>();
    for (const room of header.rooms)
      for (const subscriber of this.#rooms.get(room) ?? NOBODY)
        if (subscriber.state === 'live' && subscriber.wants(header, offset)) targets.add(subscriber);
    return targets;
  }

  /** An entry that moves sockets or ends them. It keeps its place among the events. */
  #apply(view: PartitionView, delivery: Delivery): void {
    for (const subscriber of this.#targets(delivery)) {
      view.runs.flushOne(subscriber);
      // it fell behind with that: it meets this entry when it gets there
      if (subscriber.state !== 'live') continue;
      try {
        subscriber.onControl?.(delivery.header, delivery);
      } catch (error) {
        this.#failed(subscriber, error);
      }
    }
  }

  #give(subscriber: Subscriber, run: readonly Delivery[], parcel: Parcel): void {
    const { metrics } = this.options;
    const { outbox } = subscriber;
    if (!outbox.isOpen) return;
    if (outbox.unsentBytes + parcel.bytes <= BEHIND_BYTES) {
      outbox.write(parcel);
      subscriber.positionToldAt = performance.now();
      metrics.delivered.inc({ path: 'live' }, run.length);
      return;
    }
    metrics.fellBehind.inc();
    const { ms, offset } = run[0] as Delivery;
    // a place that it may be asked for: of an entry that is there, as far as this pod knows one
    const before = this.ring(subscriber.partition).get(offset - 1);
    this.#fallBehind(subscriber, before?.ms ?? ms, offset - 1);
    this.#catchUp.begin(subscriber);
  }

  #fallBehind(subscriber: Subscriber, ms: number, offset: number): void {
    subscriber.advance(ms, offset);
    subscriber.move('behind');
  }

  /** What one socket's share throws stops nobody else's: it comes back and goes on where it stood. */
  #failed(subscriber: Subscriber, error: unknown): void {
    this.options.logger.error({ event: 'delivery_failed', err: error }, 'what was dispatched could not be written');
    subscriber.outbox.closeTransport();
  }

  #index(subscriber: Subscriber, room: string): void {
    const members = this.#rooms.get(room);
    if (members) members.add(subscriber);
    else this.#rooms.set(room, new Set([subscriber]));
  }

  #unindex(subscriber: Subscriber, room: string): void {
    const members = this.#rooms.get(room);
    if (!members) return;
    members.delete(subscriber);
    if (members.size === 0) this.#rooms.delete(room);
  }
}

/** What a position's owner has not seen of an epoch that ended; everything up to `survived` is still there. */
export function epochGap({ epoch, partition, ms, offset }: Position, survived: number): LogGap {
  const at = (place: number) => ({ epoch, ms, offset: place });
  return { partition, reason: 'epoch', from: at(Math.min(survived + 1, offset)), to: at(offset) };
}
