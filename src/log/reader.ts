import { randomBytes } from 'node:crypto';
import { FatalError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import type { RedisClock } from '../redis/clock.js';
import { type Connection, replyCode } from '../redis/connect.js';
import type { PartitionKeys } from '../redis/keys.js';
import { loadScript } from '../redis/script.js';
import { type Entry, type EntryId, parseEntry, parseId, type RawEntry } from './entry.js';
import { type EpochReason, type EpochRecord, epochsSince, lostOffsets, parseHistory } from './epochs.js';
import type { LogMetrics } from './metrics.js';
import { type Common, newestInCommon } from './newest-in-common.js';
import { OffsetTimes } from './offset-times.js';
import { Rate } from './rate.js';
import { Refusals } from './refusals.js';
import { formatSavedPosition, parseSavedPosition } from './saved-position.js';
import type { Watermark } from './watermark.js';

const SYNC = loadScript(import.meta.url, 'sync');
const SEAT = loadScript(import.meta.url, 'seat');

export const BLOCK_MS = 2000;
const SYNC_MS = 500;
/** Without a heartbeat's answer for longer, nobody knows what waits in the log. */
const UNKNOWN_AFTER_MS = 3 * SYNC_MS;
const MAX_COUNT = 500;
const READ_BYTES = 1_000_000;
/** Between two reads under load: many sockets' writes then share a read, at the cost of as much latency. */
const GAP_MS = 4;
/** So many at once, or so many a second, are load; below that a read waits for no other. */
const BUSY_ENTRIES = 4;
const BUSY_RATE = 600;
/** Work of one turn, after which other work gets the loop. */
const SLICE_MS = 8;
/** Longest time after which a saved position is written again, changed or not: silence means a dead pod. */
const RECOMMIT_MS = 10_000;
/** Before every entry. */
const START = parseId('0-0');
/** Errors after which the group may be unusable and plain reads still work. */
const GROUP_REFUSED = /^(READONLY|MISCONF|NOREPLICAS|NOPERM|OOM)$/;

/** Entries that are truly gone. Both ends belong to it. */
export interface LogGap {
  readonly partition: number;
  readonly reason: 'trimmed' | 'epoch';
  readonly from: { readonly epoch: string; readonly ms: number; readonly offset: number };
  readonly to: { readonly epoch: string; readonly ms: number; readonly offset: number };
}

/** The partition began a new epoch: what stands behind `survived` in the old one is gone. */
export interface EpochTurn {
  readonly partition: number;
  readonly from: string;
  readonly to: string;
  readonly reason: EpochReason;
  /** Newest entry that this reader had dispatched and that is still there; offset as the new epoch counts. */
  readonly survived: { readonly ms: number; readonly offset: number };
}

/** What a reader calls: a position is committed once its entry went through `onEntry`. */
export interface ReaderHandler {
  onEntry(entry: Entry, partition: number): void;
  /** No further entry is at hand: what was collected may be handed on. The next one comes when this is done. */
  onBatchEnd?(partition: number): Promise<void> | undefined;
  onGap(gap: LogGap): void;
  onEpoch(turn: EpochTurn): void;
  /** Another process reads under this pod's name: this one must end. */
  onFenced(): void;
}

export interface ReaderOptions {
  readonly partition: number;
  readonly keys: PartitionKeys;
  /** Blocks on reads; nobody else's. */
  readonly reads: Connection;
  readonly commands: Connection;
  readonly pod: string;
  readonly processId: string;
  readonly clock: RedisClock;
  readonly watermark: Watermark;
  readonly metrics: LogMetrics;
  readonly logger: Logger;
  readonly handler: ReaderHandler;
  /** Redis was looked at since it was connected to: appends may go on. */
  readonly onVerified: () => void;
  /** A pod that has not committed for this long loses its group. */
  readonly reapMs: number;
}

interface SyncMode {
  /** Takes the pod's place. */
  readonly claim?: boolean;
  /** Looks for the very entry that was last read or acknowledged. */
  readonly exact?: boolean;
  /** It isn't there: the newest entry that is, where the new epoch branches off. */
  readonly fork?: string;
}

type SyncReply = [string, string, number, number, number, number, string, string, number];

/**
 * Reads one partition in the pod's own consumer group. The group is only a cursor that can be wrong (NOACK, lost replies, other
 * people's XGROUP): the truth is here, the last entry that was dispatched. So the group is put there before it is used, what
 * is at or below it is skipped, and a hole is fetched before anything newer is dispatched.
 */
export class Reader extends Service {
  #epoch = '';
  #history: readonly EpochRecord[] = [];
  /** Last id seen in the stream, a stranger's too. */
  #last: EntryId = START;
  /** Last dispatched entry. */
  #ms = 0;
  #offset = 0;
  #first = 1;
  #tail = 0;
  #tailMs = 0;
  #bytes = 0;
  readonly #times = new OffsetTimes();

  #isClosed = false;
  readonly #stopping = new AbortController();
  #running: Promise<unknown> = Promise.resolve();
  /** Rises at every new epoch, so that what an older read brought is dropped. */
  #turn = 0;
  #mustFindPlace = false;
  #seatedGeneration = -1;
  #groupFrom = 0;
  #isReading = false;
  #readAt = performance.now();
  /** Generations of the connections over which the log was last found to be the one that this reader knows. */
  #verified = { commands: -1, reads: -1 };
  #stall = { offset: -1, bytes: -1, since: 0 };
  /** Since when the log has been ahead of what was dispatched, and nothing came: however often the connection was dropped. */
  #waiting = { offset: -1, since: 0 };
  #committed = { text: '', at: 0 };
  /** When a heartbeat was last answered, since reading began. */
  #syncedAt = Number.POSITIVE_INFINITY;
  #isFenced = false;
  #saidUnknownFormat = false;
  #meanBytes = 500;
  readonly #rate = new Rate();
  readonly #onCommandsReady = (): void => void this.#check();

  readonly #syncRefusals: Refusals;
  readonly #readRefusals: Refusals;

  constructor(private readonly options: ReaderOptions) {
    super();
    const { logger, partition } = options;
    this.#syncRefusals = new Refusals(logger, { op: 'sync', partition });
    this.#readRefusals = new Refusals(logger, { op: 'read', partition }, true);
  }

  /** The one that `at` belongs to. A new one counts once this reader has found its place in it, and said so. */
  get epoch(): string {
    return this.#oldEpoch?.epoch ?? this.#epoch;
  }

  /**
   * Since the last connect, what this pod read or had acknowledged was looked for and found. Before that nothing is read or
   * appended: another Redis, or an older copy, would grow a second entry at an offset that is taken, and nobody could tell.
   */
  get isVerified(): boolean {
    const { commands } = this.options;
    return commands.isUp && this.#verified.commands === commands.generation;
  }

  get history(): readonly EpochRecord[] {
    return this.#history;
  }

  /** Last dispatched entry: where this pod stands. */
  get at(): { readonly ms: number; readonly offset: number } {
    return { ms: this.#ms, offset: this.#offset };
  }

  /** Oldest offset in the log, as of the last heartbeat. */
  get first(): number {
    return this.#first;
  }

  /** Newest entry known, read or not. */
  get newest(): { readonly ms: number; readonly offset: number } {
    const { watermark } = this.options;
    if (this.#oldEpoch) return this.at;
    const isAhead = watermark.epoch === this.#epoch && watermark.offset > this.#tail;
    return isAhead ? { ms: watermark.ms, offset: watermark.offset } : { ms: this.#tailMs, offset: this.#tail };
  }

  get lag(): number {
    return Math.max(0, this.#tail - this.#offset);
  }

  /** Bytes of the partition, as of the last heartbeat. */
  get bytes(): number {
    return this.#bytes;
  }

  /** For how long entries have been waiting that don't come through, or may have without anybody knowing, in ms; 0 = none. */
  get stallMs(): number {
    const now = performance.now();
    const isWaiting = this.#tail > this.#offset && this.#waiting.offset === this.#offset;
    const unknownMs = now - this.#syncedAt;
    return Math.max(isWaiting ? now - this.#waiting.since : 0, unknownMs > UNKNOWN_AFTER_MS ? unknownMs : 0);
  }

  protected async onStart(): Promise<void> {
    const generation = this.options.commands.generation;
    const reply = await this.#sync({ claim: true });
    this.#verified = { commands: generation, reads: -1 };
    const saved = parseSavedPosition(reply[7]);
    if (!saved) throw new FatalError(`saved position of pod ${this.options.pod} is malformed`);
    this.#last = parseId(saved.id);
    this.#ms = saved.ms;
    this.#offset = saved.offset;
    this.#epoch = saved.epoch;
    this.options.watermark.see(this.#epoch, this.#ms, this.#offset);
    this.#take(reply);
  }

  /** Entries come from now on; until then this only knows where it stands. */
  beginReading(): void {
    const { reads } = this.options;
    reads.on('ready', () => {
      // the connection before it may still block inside Redis, and take the group's next entry
      if (reads.generation > 1) this.#groupFrom = Math.max(this.#groupFrom, performance.now() + BLOCK_MS);
      void this.#check();
    });
    this.options.commands.on('ready', this.#onCommandsReady);
    this.#readAt = this.#syncedAt = performance.now();
    this.#running = Promise.all([this.#readForever(), this.#beatForever()]);
  }

  protected async onStop(): Promise<void> {
    this.#isClosed = true;
    this.#stopping.abort();
    this.options.commands.off('ready', this.#onCommandsReady);
    this.options.reads.close();
    await within(1000, this.#running);
    if (!this.#isFenced)
      await within(
        500,
        this.#sync({}).catch(() => undefined),
      );
  }

  // --- heartbeat

  get #recommitMs(): number {
    return Math.min(RECOMMIT_MS, this.options.reapMs / 4);
  }

  /** Where this pod stands, as `offsets` keeps it: of its own entry, because a stranger's ms says nothing about ours. */
  get #position(): string {
    return formatSavedPosition(this.#ms, this.#offset);
  }

  async #sync({ claim = false, exact = false, fork = '' }: SyncMode): Promise<SyncReply> {
    const { keys, commands, pod, processId, watermark, clock } = this.options;
    const text = this.#position;
    const now = performance.now();
    // looking must work where writing is refused
    const mayCommit = !claim && !exact && !this.#mustFindPlace && watermark.epoch === this.#epoch;
    const isDue = text !== this.#committed.text || now - this.#committed.at > this.#recommitMs;
    const commit = mayCommit && isDue ? text : '';
    const reply = (await commands.run(
      SYNC,
      [keys.stream, keys.meta, keys.segments, keys.offsets, keys.producers, ...keys.ids],
      [
        pod,
        processId,
        claim ? 'claim' : '',
        randomBytes(6).toString('base64url'),
        watermark.epoch,
        watermark.ms,
        watermark.offset,
        exact ? 'exact' : '',
        commit,
        fork,
      ],
    )) as SyncReply;
    clock.learn(reply[2]);
    if (commit !== '' && reply[0] === 'ok' && reply[1] === this.#epoch) this.#committed = { text, at: now };
    return reply;
  }

  async #beatForever(): Promise<void> {
    const { signal } = this.#stopping;
    while (!this.#isClosed && !this.#isFenced) {
      await sleep(SYNC_MS, signal);
      if (this.#isClosed) return;
      // the check that a reconnect brings may have been refused, and until one succeeds nothing is appended
      if (this.options.commands.isUp) await this.#check(!this.isVerified);
      if (performance.now() - this.#readAt > 2 * (BLOCK_MS + 1000)) {
        this.#readAt = performance.now();
        this.options.metrics.kicks.inc();
        this.options.reads.rebuild();
      }
    }
  }

  /** Looks whether the log is still the one that this reader knows. False: Redis didn't say. */
  async #check(exact = true): Promise<boolean> {
    const { commands, reads, metrics, onVerified } = this.options;
    if (this.#isClosed || !commands.isUp) return false;
    const seen = { commands: commands.generation, reads: reads.generation };
    try {
      let reply = await this.#sync({ exact });
      if (reply[0] === 'forked') {
        this.#first = reply[5];
        const { ms, offset } = await this.#newestInCommon(this.#epoch);
        reply = await this.#sync({ exact, fork: `${ms}-${offset}` });
      }
      if (this.#isClosed) return false;
      this.#syncedAt = performance.now();
      this.#syncRefusals.succeeded();
      this.#take(reply);
      if (exact && !this.isVerified) {
        this.#verified = seen;
        onVerified();
      } else if (exact) this.#verified = seen;
      return true;
    } catch (error) {
      metrics.redisErrors.inc({ op: 'sync' });
      this.#syncRefusals.failed(error);
      return false;
    }
  }

  #take([status, epoch, , ms, offset, first, history, , bytes]: SyncReply): void {
    if (status === 'fenced') {
      if (this.#isFenced) return;
      this.#isFenced = true;
      // nothing that is under way is dispatched any more
      this.#turn++;
      this.#tell(() => this.options.handler.onFenced());
      return;
    }
    const tailBefore = this.#tail;
    this.#first = first;
    this.#tail = offset;
    this.#tailMs = ms;
    this.#bytes = bytes;
    this.#history = parseHistory(history);
    if (epoch !== this.#epoch) this.#beginEpoch(epoch, ms, offset, tailBefore);
    else this.#watchStall();
  }

  /** The log is longer than what was dispatched, a read waits, and not one byte comes in: the connection is dead. */
  #watchStall(): void {
    const { reads } = this.options;
    const now = performance.now();
    const isWaiting = this.#tail > this.#offset;
    if (!isWaiting || this.#waiting.offset !== this.#offset)
      this.#waiting = { offset: isWaiting ? this.#offset : -1, since: now };
    if (this.#tail <= this.#offset || !this.#isReading) {
      this.#stall = { offset: -1, bytes: -1, since: now };
    } else if (this.#stall.offset !== this.#offset || this.#stall.bytes !== reads.bytesRead) {
      this.#stall = { offset: this.#offset, bytes: reads.bytesRead, since: now };
    } else if (now - this.#stall.since > 0.8 * SYNC_MS) {
      this.#stall = { offset: -1, bytes: -1, since: now };
      void this.#kick();
    }
  }

  /** Drops the read connection, unless it brings nothing because nothing is there: the newest entries were deleted. */
  async #kick(): Promise<void> {
    const { reads, metrics, commands, keys } = this.options;
    const turn = this.#turn;
    const [offset, tail, tailMs] = [this.#offset, this.#tail, this.#tailMs];
    // an error tells nothing about the log, so it is the connection after all
    const waiting = await commands.redis
      .xrange(keys.stream, `(${this.#last.text}`, '+', 'COUNT', 1)
      .catch(() => [undefined]);
    const isSame = (): boolean => !this.#isClosed && turn === this.#turn && offset === this.#offset;
    if (!isSame()) return;
    if (waiting.length > 0) {
      metrics.kicks.inc();
      reads.reset();
      return;
    }
    // a stream that is gone altogether is a new epoch, and that says what was lost
    if (!(await this.#check()) || !isSame()) return;
    this.#lack({ ms: tailMs, offset: tail + 1 });
    this.#ms = tailMs;
    this.#offset = tail;
    this.#last = parseId(`${tailMs}-${tail}`);
  }

  // --- epochs

  /** @param tail newest offset of the old epoch that a heartbeat saw */
  #beginEpoch(epoch: string, ms: number, offset: number, tail: number): void {
    const { watermark, metrics, logger, partition, reads } = this.options;
    for (const { reason } of epochsSince(this.#history, this.#epoch)) metrics.epochs.inc({ reason });
    logger.warn(
      {
        event: 'log_epoch',
        partition,
        from: this.#epoch,
        to: epoch,
        reason: this.#history[0]?.reason,
        tail: `${ms}-${offset}`,
      },
      'the log began a new epoch',
    );
    this.#oldEpoch ??= {
      epoch: this.#epoch,
      ms: this.#ms,
      offset: this.#offset,
      // an append of this pod may have met the new epoch before this did
      seen: watermark.endOf(this.#epoch),
      tail,
    };
    this.#epoch = epoch;
    watermark.begin(epoch);
    this.#turn++;
    this.#mustFindPlace = true;
    this.#seatedGeneration = -1;
    reads.reset();
  }

  #oldEpoch: { epoch: string; ms: number; offset: number; seen: number; tail: number } | undefined;

  /** After a new epoch: goes on behind the newest entry that the old log and this one have in common. */
  async #findPlace(): Promise<void> {
    const turn = this.#turn;
    const old = this.#oldEpoch;
    if (!old) {
      this.#mustFindPlace = false;
      return;
    }
    const since = epochsSince(this.#history, old.epoch);
    const survived = await this.#newestInCommon(old.epoch);
    if (turn !== this.#turn) return;
    const hasVanished = survived.offset === 0;
    this.#last = parseId(`${survived.ms}-${survived.offset}`);
    this.#ms = survived.ms;
    this.#offset = hasVanished ? this.#first - 1 : survived.offset;
    if (hasVanished) this.#times.clear();
    // an entry that may have been deleted would pass for the sign of another log, again and again
    else if (survived.isProven) this.options.watermark.see(this.#epoch, survived.ms, survived.offset);
    this.#oldEpoch = undefined;
    this.#mustFindPlace = false;
    this.#committed = { text: '', at: 0 };
    const { partition, handler } = this.options;
    const turned: EpochTurn = {
      partition,
      from: old.epoch,
      to: this.#epoch,
      reason: since[0]?.reason ?? 'new',
      survived: { ms: this.#ms, offset: this.#offset },
    };
    this.#tell(() => handler.onEpoch(turned));
    const lost = lostOffsets(since, old, survived.offset);
    if (lost)
      this.#gap({
        partition,
        reason: 'epoch',
        from: { epoch: old.epoch, ms: old.ms, offset: lost.from },
        to: { epoch: old.epoch, ms: old.ms, offset: lost.to },
      });
  }

  /** @param epoch the one that ended */
  #newestInCommon(epoch: string): Promise<Common> {
    const { keys, commands } = this.options;
    return newestInCommon(commands.redis, keys.stream, {
      epoch,
      times: this.#times,
      at: this.at,
      history: this.#history,
    });
  }

  // --- reading

  async #readForever(): Promise<void> {
    const { reads, commands, metrics } = this.options;
    while (!this.#isClosed && !this.#isFenced) {
      const needed = this.#mustFindPlace && reads.isUp ? commands : reads;
      if (!needed.isUp) {
        await needed.whenUp(100);
        continue;
      }
      const op = { seating: false, plain: false, finding: this.#mustFindPlace };
      const turn = this.#turn;
      try {
        if (this.#mustFindPlace) await this.#findPlace();
        else if (await this.#readOnce(op)) {
          this.#readAt = performance.now();
          this.#readRefusals.succeeded();
        }
      } catch (error) {
        this.#isReading = false;
        this.#seatedGeneration = -1;
        if (this.#isClosed) return;
        metrics.redisErrors.inc({ op: op.seating ? 'seat' : 'read' });
        this.#readRefusals.failed(error);
        if (turn === this.#turn) await this.#recover(replyCode(error), op);
      }
    }
  }

  async #recover(code: string, op: { seating: boolean; plain: boolean; finding: boolean }): Promise<void> {
    if (code !== '' && !op.plain && !op.finding && (op.seating || GROUP_REFUSED.test(code))) {
      // delivery goes on by plain reads while Redis refuses what a group's read writes
      this.#groupFrom = performance.now() + 500;
      if (code === 'NOGROUP' || op.seating) await sleep(10);
      return;
    }
    await sleep(code !== '' && code !== 'NOGROUP' ? 100 : 10);
    if (code === 'UNBLOCKED' || code === 'NOGROUP') await this.#check();
  }

  /** One read and the dispatch of what it brought. False: nothing was asked. */
  async #readOnce(op: { seating: boolean; plain: boolean }): Promise<boolean> {
    const { reads, metrics } = this.options;
    const turn = this.#turn;
    const generation = reads.generation;
    if (this.#verified.reads !== generation) {
      if (!(await this.#check())) await sleep(50, this.#stopping.signal);
      return false;
    }
    if (this.#seatedGeneration !== generation && performance.now() >= this.#groupFrom) {
      op.seating = true;
      if (!(await this.#seat(turn, generation))) return false;
      op.seating = false;
    }
    op.plain = this.#seatedGeneration !== generation;
    this.#isReading = true;
    let found = op.plain ? await this.#readPlain(BLOCK_MS / 4) : await this.#readGroup();
    if (!found && !op.plain) {
      // nothing for the group, and something behind us: somebody moved the group
      found = await this.#readPlain(0);
      if (found) {
        op.plain = true;
        this.#seatedGeneration = -1;
      }
    }
    this.#isReading = false;
    if (turn !== this.#turn) {
      this.#seatedGeneration = -1;
      return true;
    }
    if (!found) return true;
    metrics.reads.inc({ mode: op.plain ? 'plain' : 'group' }, found.length);
    const startedAt = performance.now();
    if (!(await this.#dispatch(found, turn, op.plain))) this.#seatedGeneration = -1;
    await this.#endBatch();
    this.#rate.add(found.length, startedAt);
    const isBusy = found.length >= BUSY_ENTRIES || this.#rate.perSecond >= BUSY_RATE;
    const pause = GAP_MS - (performance.now() - startedAt);
    if (isBusy && pause > 0.5) await sleep(pause, this.#stopping.signal);
    return true;
  }

  async #seat(turn: number, generation: number): Promise<boolean> {
    const { reads, keys, pod, metrics } = this.options;
    const answer = await reads.run(
      SEAT,
      [keys.stream, keys.meta],
      [`pod:${pod}`, this.#last.text, this.#offset, this.#epoch],
    );
    if (turn !== this.#turn) return false;
    if (answer === 'gone' || answer === 'epoch') {
      if (!(await this.#check()) || turn === this.#turn) await sleep(50);
      return false;
    }
    metrics.seats.inc();
    this.#seatedGeneration = generation;
    return true;
  }

  get #count(): number {
    // what was read last says little of a backlog: the log's own mean counts as well
    const mean = Math.max(this.#meanBytes, this.#bytes / Math.max(1, this.#tail - this.#first + 1));
    return Math.max(1, Math.min(MAX_COUNT, Math.floor(READ_BYTES / mean)));
  }

  async #readGroup(): Promise<readonly RawEntry[] | undefined> {
    const { reads, pod, keys } = this.options;
    const reply = await reads.redis.callBuffer(
      'XREADGROUP',
      ...['GROUP', `pod:${pod}`, pod, 'COUNT', this.#count, 'BLOCK', BLOCK_MS, 'NOACK', 'STREAMS', keys.stream, '>'],
    );
    return entriesOf(reply);
  }

  async #readPlain(blockMs: number): Promise<readonly RawEntry[] | undefined> {
    const { reads, keys } = this.options;
    const wait = blockMs > 0 ? ['BLOCK', blockMs] : [];
    const args = ['COUNT', this.#count, ...wait, 'STREAMS', keys.stream, this.#last.text];
    return entriesOf(await reads.redis.callBuffer('XREAD', ...args));
  }

  /**
   * False: it stopped inside the batch, and the group stands ahead of what was dispatched.
   * @param isPlain the entries begin right behind `#last`, so a hole before them is no lost reply
   */
  async #dispatch(found: readonly RawEntry[], turn: number, isPlain: boolean): Promise<boolean> {
    let sliceFrom = performance.now();
    let bytes = 0;
    for (const [rawId, fields] of found) {
      const id = parseId(rawId);
      if (id.ms < this.#last.ms || (id.ms === this.#last.ms && id.seq <= this.#last.seq)) continue;
      for (const field of fields) bytes += field.length;
      const parsed = parseEntry(id, fields);
      const isNext = parsed !== 'foreign' && id.seq === this.#offset + 1;
      // also before a stranger's: what stands between would be behind us after it
      if (!isNext && !isPlain && !(await this.#fetchHole(id, turn))) return false;
      if (parsed === 'foreign') {
        this.#skip(id, 'foreign');
        continue;
      }
      if (id.seq !== this.#offset + 1) {
        const verdict = await this.#explain(id, turn);
        if (verdict === 'stop') return false;
        if (verdict === 'foreign') {
          this.#skip(id, 'foreign');
          continue;
        }
      }
      this.#advance(id, parsed);
      if (performance.now() - sliceFrom > SLICE_MS) {
        await this.#endBatch();
        await new Promise(setImmediate);
        if (turn !== this.#turn || this.#isClosed) return false;
        sliceFrom = performance.now();
      }
    }
    if (found.length > 0) this.#meanBytes = Math.max(64, bytes / found.length);
    return true;
  }

  /** Entries between what was dispatched and `id` were in a reply that got lost, or taken by somebody: fetches them. */
  async #fetchHole(id: EntryId, turn: number): Promise<boolean> {
    const { reads, keys, metrics } = this.options;
    await this.#endBatch();
    for (;;) {
      const args = [keys.stream, `(${this.#last.text}`, `(${id.text}`, 'COUNT', this.#count];
      const found = (await reads.redis.callBuffer('XRANGE', ...args)) as readonly RawEntry[];
      if (turn !== this.#turn) return false;
      if (found.length === 0) return true;
      metrics.reads.inc({ mode: 'plain' }, found.length);
      if (!(await this.#dispatch(found, turn, true))) return false;
    }
  }

  /** The entry at `id` does not follow what was dispatched, and nothing stands between: why? */
  async #explain(id: EntryId, turn: number): Promise<'stop' | 'foreign' | 'gap'> {
    await this.#endBatch();
    if (!(await this.#check())) {
      await sleep(50);
      return 'stop';
    }
    if (turn !== this.#turn) return 'stop';
    if (id.seq <= this.#offset || id.seq > this.newest.offset) return 'foreign';
    this.#lack({ ms: id.ms, offset: id.seq });
    return 'gap';
  }

  /** What stood between the last dispatched entry and `next` is gone. */
  #lack(next: { readonly ms: number; readonly offset: number }): void {
    this.#gap({
      partition: this.options.partition,
      reason: 'trimmed',
      from: { epoch: this.#epoch, ms: this.#ms, offset: this.#offset + 1 },
      to: { epoch: this.#epoch, ms: next.ms, offset: next.offset - 1 },
    });
  }

  #gap(gap: LogGap): void {
    const { metrics, logger, handler } = this.options;
    metrics.gaps.inc({ reason: gap.reason });
    metrics.lostEntries.inc(undefined, gap.to.offset - gap.from.offset + 1);
    logger.warn(
      { event: 'log_gap', partition: gap.partition, reason: gap.reason, from: gap.from.offset, to: gap.to.offset },
      'entries are gone that were never read here',
    );
    this.#tell(() => handler.onGap(gap));
  }

  async #endBatch(): Promise<void> {
    const { handler, partition } = this.options;
    let rest: Promise<void> | undefined;
    this.#tell(() => {
      rest = handler.onBatchEnd?.(partition);
    });
    if (rest) await rest;
  }

  /** A handler that throws is counted: it must not pass for a failed read, which would be tried again. */
  #tell(say: () => void): void {
    try {
      say();
    } catch (error) {
      const { metrics, logger, partition } = this.options;
      metrics.handlerErrors.inc();
      logger.error(
        { event: 'dispatch_error', partition, offset: this.#offset, err: error },
        'what the log brought could not be dispatched',
      );
    }
  }

  #skip(id: EntryId, reason: 'foreign' | 'format'): void {
    this.#last = id;
    this.options.metrics.foreign.inc({ reason });
  }

  #advance(id: EntryId, entry: Entry | 'unknown'): void {
    const { metrics, watermark, handler, partition, logger } = this.options;
    this.#last = id;
    this.#ms = id.ms;
    this.#offset = id.seq;
    this.#times.set(id.seq, id.ms);
    watermark.see(this.#epoch, id.ms, id.seq);
    if (entry === 'unknown') {
      metrics.foreign.inc({ reason: 'format' });
      if (!this.#saidUnknownFormat)
        logger.error(
          { event: 'log_format', partition, offset: id.seq },
          'an entry has a format that this version does not know',
        );
      this.#saidUnknownFormat = true;
      return;
    }
    this.#tell(() => handler.onEntry(entry, partition));
  }
}

/** The entries of one stream in a reply of XREAD or XREADGROUP. */
function entriesOf(reply: unknown): readonly RawEntry[] | undefined {
  const found = (reply as [Buffer, RawEntry[]][] | null)?.[0]?.[1];
  // an entry that was deleted comes without fields
  return found && found.length > 0 ? found.filter((entry) => Array.isArray(entry[1])) : undefined;
}
