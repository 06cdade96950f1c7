import { sleep } from '../../core/sleep.js';
import type { RedisClock } from '../../redis/clock.js';
import { Connection, type RedisAddress, replyCode } from '../../redis/connect.js';
import { loadScript } from '../../redis/script.js';
import { parseId } from '../entry.js';
import { Refusals } from '../refusals.js';
import { GroupPlace, type GroupPlaceOptions } from './group-place.js';
import type { Holding } from './holding.js';
import { Intake } from './intake.js';
import { offsetOf, type RawEntry } from './raw-entry.js';
import type { GroupSettings } from './settings.js';
import { Source, type Taken } from './source.js';
import type { Workbench } from './workbench.js';

const FETCH = loadScript(import.meta.url, 'fetch');
const SWEEP = loadScript(import.meta.url, 'sweep-consumers');

const BLOCK_MS = 1000;
const MAX_COUNT = 500;
/** One read stays near it. */
const READ_BYTES = 1_000_000;
/** An entry that this member holds without knowing was on its way for no longer. */
const ON_ITS_WAY_MS = 2000;
const REFUSED_MS = 500;
const LOST_MS = 20;
const GONE_MS = 100;

export interface PartitionReaderOptions extends GroupPlaceOptions {
  readonly url: RedisAddress;
  readonly member: string;
  readonly clock: RedisClock;
  readonly workbench: Workbench;
  readonly settings: GroupSettings;
  /** Ends with the member. */
  readonly signal: AbortSignal;
}

type ReadReply = readonly (readonly [stream: string, entries: readonly RawEntry[]])[] | null;

/** One partition, as one member reads it: shared with the others, or for a time its own. */
export class PartitionReader {
  readonly main: Source;
  readonly redriven: Source;
  readonly sources: ReadonlySet<Source>;
  readonly place: GroupPlace;
  readonly #intake: Intake;
  readonly #reads: Connection;
  readonly #refusals: Refusals;
  /** Newest ids that the group is known to have been handed. */
  #handed = { main: '0-0', redriven: '0-0' };
  #meanBytes = READ_BYTES / 16;
  #reading: Promise<void> = Promise.resolve();
  /** The group, or its stream, was deleted. */
  #isGone = false;
  #isInDoubt = false;
  #stop = new AbortController();
  #wake: () => void = () => {};

  constructor(private readonly options: PartitionReaderOptions) {
    const { url, partition, keys, groupKeys, group, member, commands, workbench, settings, logger } = options;
    const make = (isRedriven: boolean): Source =>
      new Source({
        partition,
        keys,
        groupKeys,
        group,
        member,
        commands,
        isRedriven,
        maxDeliveries: settings.maxDeliveries,
        maxDeadLetters: settings.maxDeadLetters,
        mostHeld: () => workbench.count + MAX_COUNT,
        logger,
        onSettled: (all, lost) => workbench.settled(all, lost),
        signal: options.signal,
      });
    this.main = make(false);
    this.redriven = make(true);
    this.sources = new Set([this.main, this.redriven]);
    this.place = new GroupPlace(options);
    this.#intake = new Intake({ member, commands, place: this.place, metrics: options.metrics });
    const name = `holdfast:${group}:${partition}`;
    this.#reads = new Connection({ url, name, silenceMs: BLOCK_MS + 1500, opensLater: true });
    this.#refusals = new Refusals(logger, { op: 'group', partition });
  }

  get partition(): number {
    return this.options.partition;
  }

  /** Reads beside the other members, until it is ended. */
  share(): void {
    this.#begin(async (signal) => {
      while (await this.#whenRoom(signal)) {
        await this.#tried(signal, async () => {
          if (this.#isInDoubt) await this.#settleDoubt();
          await this.#readGroup(signal);
        });
      }
    });
  }

  /**
   * Reads what nobody else reads meanwhile: first all that is pending, in the order of the log, then what is new. After a doubt it
   * begins anew: an entry that came too late would come behind its successors.
   */
  own(token: number, onLost: () => void): void {
    const { workbench } = this.options;
    this.#begin(async (signal) => {
      while (!signal.aborted) {
        workbench.letGo(this.sources);
        await workbench.whenIdle(this.sources, signal);
        this.#isInDoubt = false;
        await this.#untilDone(signal, async () => {
          await this.place.look();
          this.#handed = await this.place.find();
        });
        for (const source of this.sources) await this.#untilDone(signal, () => this.#takeBacklog(source, signal));
        while (!this.#isInDoubt && (await this.#whenRoom(signal))) {
          await this.#tried(signal, async () => {
            if (await this.#fetch(token, signal)) return;
            this.#stop.abort();
            onLost();
          });
        }
      }
    });
  }

  /** Nothing is read any more; what is at work goes on. */
  async end(): Promise<void> {
    this.#stop.abort();
    this.#wake();
    this.#reads.reset();
    await this.#reading;
  }

  close(): void {
    this.#stop.abort();
    this.#wake();
    this.#reads.close();
  }

  /** There is room again. */
  wake(): void {
    this.#wake();
  }

  /** Whatever was on its way is not believed: the member was away for longer than its lease. */
  doubt(): void {
    this.#isInDoubt = true;
    if (this.#reads.isUp) this.#reads.reset();
  }

  /** Takes what members hold that no longer live. @returns whether nothing is left of that */
  async takeOver(living: readonly string[]): Promise<boolean> {
    const { workbench, settings, metrics } = this.options;
    if (this.#stop.signal.aborted) return true;
    for (const source of this.sources) {
      let from = '-';
      do {
        const room = Math.min(MAX_COUNT, workbench.roomForOverdue);
        if (room <= 0) return false;
        const taken = await this.#take(source, 'others', settings.leaseMs, from, room, living);
        metrics.takenOver(taken.entries.length);
        from = taken.next;
      } while (from !== '');
    }
    return true;
  }

  /** When nothing is read any more: what was on its way, and never came, is for others. */
  async giveBackUnknown(): Promise<void> {
    const { clock, workbench } = this.options;
    for (const source of this.sources) {
      let from = '-';
      do {
        const taken = await source.take('mine', { idleMs: 0, from, most: MAX_COUNT, now: clock.at(), living: [] });
        const unknown = taken.entries.filter(([[id]]) => !workbench.holds(source, id));
        // a first delivery was counted when it was read, and nobody began it
        await source.release(unknown.map(([[id], deliveries]) => ({ id, deliveries, isCounted: deliveries === 1 })));
        from = taken.next;
      } while (from !== '');
    }
  }

  /** Takes up what Redis has pending to this member, and it doesn't know of: an answer was lost. */
  async reconcile(): Promise<void> {
    if (!this.#stop.signal.aborted) await this.#recover(ON_ITS_WAY_MS);
  }

  /** Consumers that hold nothing, of members that are gone. */
  async sweepConsumers(living: readonly string[], idleMs: number): Promise<void> {
    const { commands, group } = this.options;
    for (const { stream } of this.sources) await commands.run(SWEEP, [stream], [group, idleMs, ...living]);
  }

  get #room(): number {
    return Math.min(MAX_COUNT, this.options.workbench.room, Math.max(1, Math.floor(READ_BYTES / this.#meanBytes)));
  }

  #begin(read: (signal: AbortSignal) => Promise<void>): void {
    this.#stop.abort();
    const stop = new AbortController();
    this.#stop = stop;
    this.#reads.open();
    this.#reading = this.#reading.then(() => read(stop.signal));
  }

  async #whenRoom(signal: AbortSignal): Promise<boolean> {
    while (!signal.aborted && this.#room <= 0) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return !signal.aborted;
  }

  async #untilDone(signal: AbortSignal, work: () => Promise<void>): Promise<void> {
    let isDone = false;
    while (!signal.aborted && !isDone) {
      await this.#tried(signal, async () => {
        await work();
        isDone = true;
      });
    }
  }

  /** A failure is said once, and followed by what makes the next try better. */
  async #tried(signal: AbortSignal, work: () => Promise<void>): Promise<void> {
    const { metrics, commands } = this.options;
    try {
      if (!(await this.#reads.whenUp(1000)) || !(await commands.whenUp(1000)) || signal.aborted) return;
      if (this.#isGone) {
        this.#isGone = !(await this.place.restore());
        if (this.#isGone) return await sleep(GONE_MS, signal);
        this.#handed = await this.place.find();
        // what was pending isn't any more
        this.#isInDoubt = true;
      }
      await work();
      this.#refusals.succeeded();
    } catch (error) {
      if (signal.aborted) return;
      metrics.failedCommand('read');
      const code = replyCode(error);
      if (code === 'NOGROUP' || code === 'UNBLOCKED') this.#isGone = true;
      else {
        this.#refusals.failed(error);
        this.#isInDoubt = true;
      }
      await sleep(code === '' || this.#isGone ? LOST_MS : REFUSED_MS, signal);
    }
  }

  /**
   * An answer may have been lost on its way, and with it entries, which come before all that is read next; and the connection may
   * lead to another Redis, whose epoch is known before an entry of it is handed out.
   */
  async #settleDoubt(): Promise<void> {
    await this.place.look();
    await this.#recover(0);
    this.#isInDoubt = false;
  }

  async #readGroup(signal: AbortSignal): Promise<void> {
    const { group, member } = this.options;
    const how = ['GROUP', group, member, 'COUNT', this.#room, 'BLOCK', BLOCK_MS];
    const streams = ['STREAMS', this.main.stream, this.redriven.stream, '>', '>'];
    const reply = await this.#reads.redis.call('XREADGROUP', ...how, ...streams);
    await this.#accept(reply as ReadReply, signal);
  }

  /** @returns false: another has the partition */
  async #fetch(token: number, signal: AbortSignal): Promise<boolean> {
    const { commands, groupKeys, group, member } = this.options;
    const keys = [this.main.stream, this.redriven.stream, groupKeys.state];
    const reply = await commands.run(FETCH, keys, [group, member, token, this.#room]);
    const [status, entries] = reply as [string, ReadReply];
    if (status === 'lost') return false;
    if (entries) await this.#accept(entries, signal);
    else await this.#whenNews(signal);
    return true;
  }

  /** Until there is an entry that the group was not handed, for a second at most. */
  async #whenNews(signal: AbortSignal): Promise<void> {
    const handed = this.#handed;
    const streams = ['STREAMS', this.main.stream, this.redriven.stream, handed.main, handed.redriven];
    const reply = (await this.#reads.redis.call('XREAD', 'COUNT', 1, 'BLOCK', BLOCK_MS, ...streams)) as ReadReply;
    if (signal.aborted || !reply) return;
    for (const [stream, [first]] of reply) {
      // should somebody have moved the group past it, it is not waited for again
      const of = stream === this.main.stream ? 'main' : 'redriven';
      if (first && this.#handed[of] === handed[of]) this.#handed = { ...this.#handed, [of]: first[0] };
    }
  }

  async #accept(reply: ReadReply, signal: AbortSignal): Promise<void> {
    if (!reply) return;
    const { workbench } = this.options;
    // of a topic that began after the group did
    if (this.place.epoch === '') await this.place.learn();
    for (const [stream, raw] of reply) {
      const source = stream === this.main.stream ? this.main : this.redriven;
      const newest = raw.at(-1)?.[0];
      if (newest === undefined) continue;
      this.#handed = { ...this.#handed, [source === this.main ? 'main' : 'redriven']: newest };
      if (source === this.main) await this.#see(raw, newest);
      const holdings = await this.#intake.take(source, raw, () => 1, true);
      // paused or ended while it was read
      if (signal.aborted || !workbench.takes) await this.#leave(source, holdings);
      else for (const holding of holdings) workbench.add(holding);
    }
    workbench.pump();
  }

  /** Others may have them; a member that goes on must not read what comes behind them first. */
  async #leave(source: Source, holdings: readonly Holding[]): Promise<void> {
    this.#isInDoubt = true;
    await source.release(holdings);
  }

  #see(raw: readonly RawEntry[], newest: string): Promise<void> {
    let bytes = 0;
    const offsets: number[] = [];
    for (const entry of raw) {
      for (const { length } of entry[1]) bytes += length;
      const offset = offsetOf(entry);
      if (offset > 0) offsets.push(offset);
    }
    this.#meanBytes = Math.max(1, (this.#meanBytes + bytes / raw.length) / 2);
    return this.place.see(offsets, newest);
  }

  async #take(
    source: Source,
    whose: 'others' | 'mine' | 'all',
    idleMs: number,
    from: string,
    most: number,
    living: readonly string[] = [],
  ): Promise<Taken> {
    const { clock, workbench, metrics } = this.options;
    const taken = await source.take(whose, { idleMs, from, most, now: clock.at(), living });
    if (taken.dead > 0) metrics.deadLettered('lost', taken.dead);
    const { count, first, last } = taken.trimmed;
    if (count > 0) {
      const range = source === this.main ? { from: parseId(first).seq, to: parseId(last).seq } : {};
      this.place.tellTrimmed(count, range);
    }
    const unknown = taken.entries.filter(([[id]]) => !workbench.holds(source, id));
    if (whose === 'mine' && source === this.main) this.place.found(unknown.flatMap(([raw]) => offsetOf(raw) ?? []));
    const raw = unknown.map(([entry]) => entry);
    const holdings = await this.#intake.take(source, raw, (index) => unknown[index]?.[1] ?? 1, false);
    // paused or ended meanwhile
    if (!workbench.takes) await this.#leave(source, holdings);
    else for (const holding of holdings) workbench.add(holding, whose === 'others');
    workbench.pump();
    return taken;
  }

  async #recover(idleMs: number): Promise<void> {
    for (const source of this.sources) {
      let from = '-';
      do from = (await this.#take(source, 'mine', idleMs, from, MAX_COUNT)).next;
      while (from !== '' && !this.#stop.signal.aborted);
    }
  }

  async #takeBacklog(source: Source, signal: AbortSignal): Promise<void> {
    let from = '-';
    while (await this.#whenRoom(signal)) {
      const taken = await this.#take(source, 'all', 0, from, this.#room);
      this.options.metrics.takenOver(taken.entries.length);
      if (taken.next === '') return;
      from = taken.next;
    }
  }
}
