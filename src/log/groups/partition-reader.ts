import { RelayError } from '../../core/errors.js';
import type { Logger } from '../../core/ports.js';
import { sleep } from '../../core/sleep.js';
import type { RedisClock } from '../../redis/clock.js';
import { Connection, type RedisAddress, replyCode } from '../../redis/connect.js';
import type { GroupKeys, PartitionKeys } from '../../redis/keys.js';
import { loadScript } from '../../redis/script.js';
import { parsePosition } from '../../wire/position.js';
import { parseEntry, parseId, type RawEntry } from '../entry.js';
import { type EpochRecord, epochsSince, parseHistory, survivingTail } from '../epochs.js';
import { Refusals } from '../refusals.js';
import { GapWatch, type Range } from './gap-watch.js';
import { GroupEntry } from './group-entry.js';
import type { Holding, Pending } from './holding.js';
import type { GroupMetrics, PartitionProgress } from './metrics.js';
import type { GroupGap, GroupSettings, GroupStart } from './settings.js';
import { Source, type Taken } from './source.js';
import type { Workbench } from './workbench.js';

const CREATE = loadScript(import.meta.url, 'create');
const PROGRESS = loadScript(import.meta.url, 'progress');
const TOLD = loadScript(import.meta.url, 'told');
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

export interface PartitionReaderOptions {
  readonly url: RedisAddress;
  readonly partition: number;
  readonly keys: PartitionKeys;
  readonly groupKeys: GroupKeys;
  /** As Redis has it. */
  readonly group: string;
  readonly member: string;
  readonly commands: Connection;
  readonly clock: RedisClock;
  readonly workbench: Workbench;
  readonly settings: GroupSettings;
  readonly start: GroupStart;
  readonly metrics: GroupMetrics;
  readonly logger: Logger;
  readonly onGap: (gap: GroupGap) => void;
  /** Ends with the member. */
  readonly signal: AbortSignal;
}

type ReadReply = readonly (readonly [stream: Buffer, entries: readonly RawEntry[]])[] | null;

/** One partition, as one member reads it: shared with the others, or for a time its own. */
export class PartitionReader {
  readonly main: Source;
  readonly redriven: Source;
  readonly sources: ReadonlySet<Source>;
  readonly #reads: Connection;
  readonly #gaps = new GapWatch();
  readonly #refusals: Refusals;
  #epoch = '';
  #history: readonly EpochRecord[] = [];
  /** Newest id of the log that this member read. */
  #newest = '';
  #meanBytes = READ_BYTES / 16;
  #reading: Promise<void> = Promise.resolve();
  /** The group, or its stream, was deleted. */
  #isGone = false;
  #isInDoubt = false;
  #stop = new AbortController();
  #wake: () => void = () => {};
  progress: PartitionProgress = { lag: undefined, pending: undefined, oldestPendingSeconds: undefined };

  constructor(private readonly options: PartitionReaderOptions) {
    const { url, partition, keys, groupKeys, group, member, commands, workbench, settings, logger, signal } = options;
    const shared = { partition, keys, groupKeys, group, member, commands, signal };
    const make = (isRedriven: boolean): Source =>
      new Source({
        ...shared,
        isRedriven,
        maxDeliveries: settings.maxDeliveries,
        maxDeadLetters: settings.maxDeadLetters,
        mostHeld: () => workbench.count + MAX_COUNT,
        onSettled: (holding, fate) => workbench.settled(holding, fate),
      });
    this.main = make(false);
    this.redriven = make(true);
    this.sources = new Set([this.main, this.redriven]);
    const name = `holdfast:${group}:${partition}`;
    this.#reads = new Connection({ url, name, silenceMs: BLOCK_MS + 1500, opensLater: true });
    this.#refusals = new Refusals(logger, { op: 'group', partition });
  }

  get partition(): number {
    return this.options.partition;
  }

  /** Makes the group if it isn't there. @throws when Redis can't be asked */
  async prepare(): Promise<void> {
    await this.#learn();
    await this.#create(await this.#startId());
    await this.#place();
  }

  /** Reads beside the other members, until it is ended. */
  share(): void {
    this.#begin(async (signal) => {
      while (await this.#whenRoom(signal)) await this.#tried(signal, () => this.#readGroup(signal));
    });
  }

  /** Reads what nobody else reads meanwhile: first what members before it left, in the order of the log. */
  own(token: number, onLost: () => void): void {
    this.#begin(async (signal) => {
      await this.options.workbench.whenIdle(this.sources);
      await this.#untilDone(signal, () => this.#place());
      for (const source of this.sources) await this.#untilDone(signal, () => this.#takeBacklog(source, signal));
      while (await this.#whenRoom(signal)) {
        await this.#tried(signal, async () => {
          if (await this.#fetch(token, signal)) return;
          this.#stop.abort();
          onLost();
        });
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
    this.#gaps.place(undefined);
    this.#isInDoubt = true;
    if (this.#reads.isUp) this.#reads.reset();
  }

  /** Takes what members hold that no longer live. @returns whether nothing is left of that */
  async takeOver(living: readonly string[]): Promise<boolean> {
    if (this.#stop.signal.aborted) return true;
    for (const source of this.sources) {
      let from = '-';
      do {
        if (this.#room <= 0) return false;
        const taken = await this.#take(source, 'others', this.options.settings.leaseMs, from, living);
        this.options.metrics.takenOver(taken.entries.length);
        from = taken.next;
      } while (from !== '');
    }
    return true;
  }

  /** What Redis has pending to this member, and it doesn't know of: an answer was lost. */
  async reconcile(): Promise<void> {
    if (!this.#stop.signal.aborted) await this.#recover(ON_ITS_WAY_MS);
  }

  /** Looks how far the group is, and what has gone meanwhile. */
  async look(): Promise<void> {
    const { commands, keys, groupKeys, group, clock } = this.options;
    const reply = (await commands.run(
      PROGRESS,
      [keys.stream, keys.meta, groupKeys.state],
      [group, this.#newest, this.#epoch],
    )) as [string, string, number, string, number, string, number, number];
    const [epoch, history, end, oldest, pending, oldestPending, last, wall] = reply;
    clock.learn(wall);
    this.progress = {
      lag: pending < 0 ? undefined : Math.max(0, end - last),
      pending: pending < 0 ? undefined : pending,
      oldestPendingSeconds: pending > 0 ? Math.max(0, wall - parseId(oldestPending).ms) / 1000 : 0,
    };
    if (epoch !== '' && epoch !== this.#epoch) await this.#turn(epoch, parseHistory(history));
    const missing = this.#gaps.verify(oldest === '' ? end + 1 : parseId(oldest).seq);
    for (const range of missing) await this.#tell(range);
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
      if (this.#isGone) await this.#restore();
      if (this.#isInDoubt) await this.#settleDoubt();
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
      await sleep(this.#isGone ? GONE_MS : code === '' ? LOST_MS : REFUSED_MS, signal);
    }
  }

  /**
   * An answer may have been lost on its way, and with it entries, which come before all that is read next; and the connection may
   * lead to another Redis, whose epoch is known before an entry of it is handed out.
   */
  async #settleDoubt(): Promise<void> {
    await this.look();
    await this.#recover(0);
    this.#isInDoubt = false;
  }

  async #readGroup(signal: AbortSignal): Promise<void> {
    const { group, member } = this.options;
    const streams = [this.main.stream, this.redriven.stream];
    const reply = (await this.#reads.redis.callBuffer(
      'XREADGROUP',
      'GROUP',
      group,
      member,
      'COUNT',
      this.#room,
      'BLOCK',
      BLOCK_MS,
      'STREAMS',
      ...streams,
      '>',
      '>',
    )) as ReadReply;
    await this.#accept(reply, signal);
  }

  async #fetch(token: number, signal: AbortSignal): Promise<boolean> {
    const { commands, groupKeys, group, member } = this.options;
    const keys = [this.main.stream, this.redriven.stream, groupKeys.state];
    const [status, reply] = (await commands.runBuffer(FETCH, keys, [group, member, token, this.#room])) as [
      Buffer,
      ReadReply,
    ];
    if (status.toString() === 'lost') return false;
    if (reply) await this.#accept(reply, signal);
    else await this.#whenNews(signal);
    return true;
  }

  #awaited = { main: '', redriven: '' };

  /** Until there is an entry that the group was not handed, for a second at most. */
  async #whenNews(signal: AbortSignal): Promise<void> {
    const awaited = this.#awaited;
    const from = [awaited.main, awaited.redriven];
    const reply = (await this.#reads.redis.callBuffer(
      'XREAD',
      'COUNT',
      1,
      'BLOCK',
      BLOCK_MS,
      'STREAMS',
      this.main.stream,
      this.redriven.stream,
      ...from,
    )) as ReadReply;
    if (signal.aborted || !reply) return;
    for (const [stream, [first]] of reply) {
      // should somebody have moved the group past it, it is not waited for again
      const of = stream.toString() === this.main.stream ? 'main' : 'redriven';
      if (first && this.#awaited[of] === awaited[of]) this.#awaited = { ...this.#awaited, [of]: first[0].toString() };
    }
  }

  async #accept(reply: ReadReply, signal: AbortSignal): Promise<void> {
    if (!reply) return;
    const { workbench } = this.options;
    // of a topic that began after the group did
    if (this.#epoch === '') await this.#learn();
    for (const [stream, raw] of reply) {
      const source = stream.toString() === this.main.stream ? this.main : this.redriven;
      if (source === this.main) await this.#watch(raw);
      this.#noteNewest(source, raw);
      const holdings = raw.map((entry) => this.#holdingOf(source, entry, 1, true));
      // paused or ended while it was read: others may have it
      if (signal.aborted || workbench.isPaused)
        await source.release(holdings.filter((holding) => holding !== undefined));
      else for (const holding of holdings) if (holding) workbench.add(holding);
    }
    workbench.pump();
  }

  #noteNewest(source: Source, raw: readonly RawEntry[]): void {
    const newest = raw.at(-1)?.[0].toString();
    if (newest === undefined) return;
    if (source === this.main) {
      this.#newest = newest;
      this.#awaited = { ...this.#awaited, main: newest };
    } else this.#awaited = { ...this.#awaited, redriven: newest };
  }

  async #watch(raw: readonly RawEntry[]): Promise<void> {
    const offsets: number[] = [];
    let bytes = 0;
    for (const [id, fields] of raw) {
      const { seq } = parseId(id);
      for (const field of fields) bytes += field.length;
      // a stranger's id has no place among ours
      if (fields[0] && fields[0].toString('latin1') === String(seq)) offsets.push(seq);
    }
    if (raw.length > 0) this.#meanBytes = Math.max(1, (this.#meanBytes + bytes / raw.length) / 2);
    for (const range of this.#gaps.see(offsets)) await this.#tell(range);
  }

  /** What a handler gets of it; `undefined`: nothing, and that is seen to. */
  #holdingOf(
    source: Source,
    [rawId, rawFields]: RawEntry,
    deliveries: number,
    isCounted: boolean,
  ): Holding | undefined {
    const { metrics } = this.options;
    const id = parseId(rawId);
    const [originalId, fields] = source.isRedriven
      ? [parseId(rawFields[1] ?? '0-0'), rawFields.slice(2)]
      : [id, rawFields];
    const entry = parseEntry(originalId, fields);
    const pending: Pending = { source, id: id.text, ms: id.ms, seq: id.seq, deliveries, hasFailed: !isCounted };
    const skip = (reason: 'foreign' | 'kind'): undefined => {
      metrics.skipped(reason);
      source.acknowledge(pending);
    };
    if (entry === 'foreign') return skip('foreign');
    if (entry === 'unknown') {
      metrics.skipped('format');
      const failure = { at: Date.now(), member: this.options.member, reason: 'error', error: 'of a newer version' };
      void source.fail(pending, 'error', failure, 0);
      return undefined;
    }
    if (entry.header.kind !== 'event') return skip('kind');
    return {
      ...pending,
      entry: new GroupEntry(entry, this.partition, this.#epoch, deliveries, source.isRedriven),
      bytes: entry.size,
      isCounted,
      isAlone: false,
      key: undefined,
      state: 'queued',
    };
  }

  async #take(
    source: Source,
    whose: 'others' | 'mine' | 'all',
    idleMs: number,
    from: string,
    living: readonly string[] = [],
  ): Promise<Taken> {
    const { clock, workbench, metrics } = this.options;
    const most = Math.max(1, this.#room);
    const taken = await source.take(whose, { idleMs, from, most, now: clock.at(), living });
    if (taken.dead > 0) metrics.deadLettered('lost', taken.dead);
    const { count, first, last } = taken.trimmed;
    if (count > 0) {
      metrics.missing('trimmed', count);
      this.options.onGap({
        reason: 'trimmed',
        partition: this.partition,
        from: parseId(first).seq,
        to: parseId(last).seq,
      });
    }
    for (const [raw, deliveries] of taken.entries) {
      if (workbench.holds(source, raw[0].toString())) continue;
      const holding = this.#holdingOf(source, raw, deliveries, false);
      if (holding) workbench.add(holding);
    }
    workbench.pump();
    return taken;
  }

  async #recover(idleMs: number): Promise<void> {
    for (const source of this.sources) {
      let from = '-';
      do from = (await this.#take(source, 'mine', idleMs, from)).next;
      while (from !== '' && !this.#stop.signal.aborted);
    }
  }

  async #takeBacklog(source: Source, signal: AbortSignal): Promise<void> {
    let from = '-';
    while (!signal.aborted) {
      if (!(await this.#whenRoom(signal))) return;
      const taken = await this.#take(source, 'all', 0, from);
      this.options.metrics.takenOver(taken.entries.length);
      if (taken.next === '') return;
      from = taken.next;
    }
  }

  /** The group is gone, or its stream: it begins again where all was done. */
  async #restore(): Promise<void> {
    const { logger, groupKeys, commands, metrics, onGap, group } = this.options;
    const before = this.#epoch;
    await this.#learn();
    const [floor, epoch] = await commands.redis.hmget(groupKeys.state, 'floor', 'epoch');
    let id = '0-0';
    if (floor && epoch) {
      const tail = survivingTail(this.#history, epoch);
      const isWhole = epoch === this.#epoch || !tail || parseId(floor).seq <= tail.offset;
      id = isWhole ? floor : `${tail.ms}-${tail.offset}`;
    }
    const made = await this.#create(id);
    if (made === 'deleted') throw new StillGone();
    this.#isGone = false;
    this.#gaps.place(undefined);
    if (made === 'made' && before === this.#epoch) {
      metrics.missing('group', 0);
      logger.error(
        { event: 'group_recreated', group, partition: this.partition, from: id },
        'the group was deleted under its members; what was not known to be done comes again',
      );
      onGap({ reason: 'group', partition: this.partition });
    }
    await this.#place();
  }

  async #learn(): Promise<void> {
    const { commands, keys } = this.options;
    const [epoch, history] = await commands.redis.hmget(keys.meta, 'epoch', 'history');
    const records = parseHistory(history ?? '');
    if (this.#epoch !== '' && epoch && epoch !== this.#epoch) await this.#turn(epoch, records);
    this.#epoch = epoch ?? this.#epoch;
    this.#history = records;
  }

  async #create(id: string): Promise<'made' | 'there' | 'deleted'> {
    const { commands, keys, groupKeys, group } = this.options;
    const all = [keys.stream, keys.meta, groupKeys.redriven, groupKeys.state];
    return (await commands.run(CREATE, all, [group, id, this.#epoch])) as 'made' | 'there' | 'deleted';
  }

  async #startId(): Promise<string> {
    const { commands, keys, start } = this.options;
    const [first, ms, offset] = await commands.redis.hmget(keys.meta, 'first', 'ms', 'offset');
    const earliest = `0-${Math.max(0, Number(first ?? 1) - 1)}`;
    if (start === 'latest') return `${ms ?? 0}-${offset ?? 0}`;
    if (start === 'earliest') return earliest;
    if (start instanceof Date) return `${Math.max(0, start.getTime())}-0`;
    const position = parsePosition(start.position);
    if (!position) throw new RelayError('bad_request', `from: ${JSON.stringify(start.position)} is no position`);
    if (position.partition !== this.partition) return earliest;
    const tail = position.epoch === this.#epoch ? undefined : survivingTail(this.#history, position.epoch);
    const { ms: tailMs, offset: tailOffset } = tail ?? position;
    return position.offset <= tailOffset ? `${position.ms}-${position.offset}` : `${tailMs}-${tailOffset}`;
  }

  /** Where the group stands, as Redis says. */
  async #place(): Promise<void> {
    const { group, commands } = this.options;
    const [main, redriven] = await Promise.all(
      [this.main, this.redriven].map(async ({ stream }) => {
        const groups = (await commands.redis.xinfo('GROUPS', stream)) as unknown[][];
        const own = groups.find((fields) => fields[fields.indexOf('name') + 1] === group);
        return own ? String(own[own.indexOf('last-delivered-id') + 1]) : '0-0';
      }),
    );
    this.#awaited = { main: main as string, redriven: redriven as string };
    const { seq, ms } = parseId(main as string);
    // a group that was set to a time stands before an offset that it doesn't know
    this.#gaps.place(seq > 0 || ms === 0 ? seq : undefined);
    if (seq > 0) this.#newest = main as string;
  }

  async #turn(epoch: string, history: readonly EpochRecord[]): Promise<void> {
    const { logger, commands, groupKeys, onGap, metrics } = this.options;
    const before = this.#epoch;
    this.#epoch = epoch;
    this.#history = history;
    this.#newest = '';
    this.#gaps.place(undefined);
    if (before === '') return;
    const since = epochsSince(history, before);
    const tail = survivingTail(history, before)?.offset ?? 0;
    const lost = Math.max(0, ...since.map((record) => record.lost.offset));
    const hasLost = lost > tail || since.length === 0 || since.some(({ reason }) => reason !== 'meta');
    if (!hasLost) return;
    if (Number(await commands.run(TOLD, [groupKeys.state], [epoch, 0, 0])) === 0) return;
    const range = lost > tail ? { from: tail + 1, to: lost } : {};
    metrics.missing('epoch', lost > tail ? lost - tail : 0);
    logger.error(
      { event: 'group_epoch', partition: this.partition, from: before, to: epoch, ...range },
      'the log lost entries; the group goes on in what there is',
    );
    onGap({ reason: 'epoch', partition: this.partition, ...range });
  }

  async #tell(range: Range): Promise<void> {
    const { commands, groupKeys, logger, metrics, onGap } = this.options;
    const from = Number(await commands.run(TOLD, [groupKeys.state], [this.#epoch, range.from, range.to]));
    if (from === 0) return;
    metrics.missing('trimmed', range.to - from + 1);
    logger.error(
      { event: 'group_gap', partition: this.partition, from, to: range.to },
      'entries were cut from the log before the group was handed them',
    );
    onGap({ reason: 'trimmed', partition: this.partition, from, to: range.to });
  }
}

/** The stream is not there, and will be with the log's next append. */
class StillGone extends Error {}
