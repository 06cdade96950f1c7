import { RelayError } from '../../core/errors.js';
import type { Logger } from '../../core/ports.js';
import type { RedisClock } from '../../redis/clock.js';
import type { Connection } from '../../redis/connect.js';
import type { GroupKeys, PartitionKeys } from '../../redis/keys.js';
import { loadScript } from '../../redis/script.js';
import { parsePosition } from '../../wire/position.js';
import { parseId } from '../entry.js';
import { type EpochRecord, epochsSince, parseHistory, survivingTail } from '../epochs.js';
import { GapWatch, type Range } from './gap-watch.js';
import type { GroupMetrics, PartitionProgress } from './metrics.js';
import { orNothing } from './replies.js';
import type { GroupGap, GroupStart } from './settings.js';

const CREATE = loadScript(import.meta.url, 'create');
const PROGRESS = loadScript(import.meta.url, 'progress');
const TOLD = loadScript(import.meta.url, 'told');

const UNKNOWN: PartitionProgress = { lag: undefined, pending: undefined, oldestPendingSeconds: undefined };

export interface GroupPlaceOptions {
  readonly partition: number;
  readonly keys: PartitionKeys;
  readonly groupKeys: GroupKeys;
  /** As Redis has it. */
  readonly group: string;
  readonly commands: Connection;
  readonly clock: RedisClock;
  readonly start: GroupStart;
  readonly metrics: GroupMetrics;
  readonly logger: Logger;
  readonly onGap: (gap: GroupGap) => void;
}

/** Where a group stands in one partition, and what has gone from before it: told once, whichever member sees it first. */
export class GroupPlace {
  epoch = '';
  progress = UNKNOWN;
  readonly #gaps = new GapWatch();
  #history: readonly EpochRecord[] = [];
  /** Newest id of the log that this member read. */
  #newest = '';
  /** Epoch in which the group was last seen. */
  #seenIn = '';

  constructor(private readonly options: GroupPlaceOptions) {}

  /** Makes the group if it isn't there. */
  async prepare(): Promise<void> {
    await this.learn();
    await this.#create(await this.#startId());
    await this.find();
  }

  /** @returns the log's epoch, as it is now; '': nothing was appended, or all is lost and nothing was appended since */
  async learn(): Promise<string> {
    const { commands, keys } = this.options;
    const [epoch, history] = await commands.redis.hmget(keys.meta, 'epoch', 'history');
    const records = parseHistory(history ?? '');
    if (epoch && epoch !== this.epoch) await this.#turn(epoch, records);
    this.#history = records;
    return epoch ?? '';
  }

  /** @returns ids behind which the group reads next: of the log, and of what was redriven */
  async find(): Promise<{ readonly main: string; readonly redriven: string }> {
    const { keys, groupKeys } = this.options;
    const [main, redriven] = await Promise.all([this.#delivered(keys.stream), this.#delivered(groupKeys.redriven)]);
    const { seq, ms } = parseId(main);
    // a group that was set to a time stands before an offset that it doesn't know
    this.#gaps.place(seq > 0 || ms === 0 ? seq : undefined);
    if (seq > 0) this.#newest = main;
    return { main, redriven };
  }

  /** What one answer brought: offsets of ours, ascending, and its last id. */
  async see(offsets: readonly number[], newest: string): Promise<void> {
    this.#newest = newest;
    for (const range of this.#gaps.see(offsets)) await this.#tell(range);
  }

  /** Offsets that an answer brought which was lost. What others were handed meanwhile, {@link look} has said. */
  found(offsets: readonly number[]): void {
    for (const offset of offsets) this.#gaps.see([offset]);
  }

  /** Entries that were pending, and are no longer in the log. */
  tellTrimmed(count: number, range: Partial<Range>): void {
    const { metrics, logger, onGap, partition } = this.options;
    metrics.missing('trimmed', count);
    const text = 'entries were cut from the log before they were handled';
    logger.error({ event: 'group_gap', partition, count, ...range }, text);
    onGap({ reason: 'trimmed', partition, ...range });
  }

  /** The epoch in which an entry was appended, as far back as is known: so its position is the same at every delivery. */
  epochOf(offset: number): string {
    let oldest = this.epoch;
    for (const { epoch, tail } of this.#history) {
      if (offset > tail.offset) return epoch;
      oldest = epoch;
    }
    return oldest;
  }

  /** How far the group is, and what has gone meanwhile. */
  async look(): Promise<void> {
    const { commands, keys, groupKeys, group, clock } = this.options;
    const all = [keys.stream, keys.meta, groupKeys.state];
    const reply = await commands.run(PROGRESS, all, [group, this.#newest, this.epoch]);
    const [epoch, history, end, oldest, pending, oldestPending, last, wall] = reply as ProgressReply;
    clock.learn(wall);
    this.progress =
      pending < 0
        ? UNKNOWN
        : {
            lag: Math.max(0, end - last),
            pending,
            oldestPendingSeconds: pending > 0 ? Math.max(0, wall - parseId(oldestPending).ms) / 1000 : 0,
          };
    if (epoch !== '' && epoch !== this.epoch) await this.#turn(epoch, parseHistory(history));
    if (pending >= 0) this.#seenIn = epoch;
    for (const range of this.#gaps.verify(oldest === '' ? end + 1 : parseId(oldest).seq)) await this.#tell(range);
    // what others were handed, and was cut after that, is no gap for one that reads rarely
    if (epoch === this.epoch) this.#gaps.handed(last);
  }

  /**
   * The group is gone, or its stream: it begins again where all was done.
   *
   * @returns false: the stream is not there, and will be with the log's next append
   */
  async restore(): Promise<boolean> {
    const { logger, groupKeys, commands, metrics, onGap, group, partition } = this.options;
    const now = await this.learn();
    const [floor, epoch] = await commands.redis.hmget(groupKeys.state, 'floor', 'epoch');
    const from =
      floor && epoch ? this.#surviving(floor, epoch) : await this.#unkept(now !== '' && now === this.#seenIn);
    const made = await this.#create(from);
    if (made === 'deleted') return false;
    // else it went with the log, which is told as such
    if (made === 'made' && now !== '' && now === this.#seenIn) {
      metrics.missing('group', 0);
      const text = 'the group was deleted under its members: what is not known to be done comes again';
      logger.error({ event: 'group_recreated', group, partition, from }, text);
      onGap({ reason: 'group', partition });
    }
    return true;
  }

  /** Where to go on if nothing was kept: of another log, all is new. */
  async #unkept(isSameLog: boolean): Promise<string> {
    if (!isSameLog) return '0-0';
    return this.#newest !== '' ? this.#newest : this.#startId();
  }

  /** The newest id that means the same in the log as it is now, at most `id`, which is of `epoch`. */
  #surviving(id: string, epoch: string): string {
    const tail = epoch === this.epoch ? undefined : survivingTail(this.#history, epoch);
    return !tail || parseId(id).seq <= tail.offset ? id : `${tail.ms}-${tail.offset}`;
  }

  async #delivered(stream: string): Promise<string> {
    const groups = (await this.options.commands.redis.xinfo('GROUPS', stream).catch(orNothing)) as unknown[][];
    const own = groups.find((fields) => fields[fields.indexOf('name') + 1] === this.options.group);
    return own ? String(own[own.indexOf('last-delivered-id') + 1]) : '0-0';
  }

  async #create(id: string): Promise<'made' | 'there' | 'deleted'> {
    const { commands, keys, groupKeys, group } = this.options;
    const all = [keys.stream, keys.meta, groupKeys.redriven, groupKeys.state];
    return (await commands.run(CREATE, all, [group, id, this.epoch])) as 'made' | 'there' | 'deleted';
  }

  async #startId(): Promise<string> {
    const { commands, keys, start, partition } = this.options;
    const [first, ms, offset] = await commands.redis.hmget(keys.meta, 'first', 'ms', 'offset');
    const earliest = `0-${Math.max(0, Number(first ?? 1) - 1)}`;
    if (start === 'latest') return `${ms ?? 0}-${offset ?? 0}`;
    if (start === 'earliest') return earliest;
    if (start instanceof Date) {
      const time = Math.max(0, start.getTime());
      const [entry] = await commands.redis.xrange(keys.stream, time, '+', 'COUNT', 1);
      const at = entry && parseId(entry[0]);
      return at ? `${at.ms}-${at.seq - 1}` : `${Math.max(time, Number(ms ?? 0))}-${offset ?? 0}`;
    }
    const position = parsePosition(start.position);
    if (!position) throw new RelayError('bad_request', `from: ${JSON.stringify(start.position)} is no position`);
    return position.partition === partition
      ? this.#surviving(`${position.ms}-${position.offset}`, position.epoch)
      : earliest;
  }

  async #turn(epoch: string, history: readonly EpochRecord[]): Promise<void> {
    const { logger, onGap, metrics, partition } = this.options;
    const before = this.epoch;
    this.epoch = epoch;
    this.#history = history;
    if (before === '') {
      // the group was made before the topic had an epoch
      this.#seenIn = epoch;
      return;
    }
    this.#newest = '';
    this.#gaps.place(undefined);
    const since = epochsSince(history, before);
    const tail = survivingTail(history, before)?.offset ?? 0;
    const lost = Math.max(0, ...since.map((record) => record.lost.offset));
    const hasLost = lost > tail || since.length === 0 || since.some(({ reason }) => reason !== 'meta');
    if (!hasLost || (await this.#firstToTell(epoch, 0, 0)) === 0) return;
    const range = lost > tail ? { from: tail + 1, to: lost } : {};
    metrics.missing('epoch', Math.max(0, lost - tail));
    const about = { partition, epochs: [before, epoch], ...range };
    logger.error({ event: 'group_epoch', ...about }, 'the log lost entries; the group goes on in what there is');
    onGap({ reason: 'epoch', partition, ...range });
  }

  async #tell(range: Range): Promise<void> {
    const { logger, metrics, onGap, partition } = this.options;
    const from = await this.#firstToTell(this.epoch, range.from, range.to);
    if (from === 0) return;
    metrics.missing('trimmed', range.to - from + 1);
    const text = 'entries were cut from the log before the group was handed them';
    logger.error({ event: 'group_gap', partition, from, to: range.to }, text);
    onGap({ reason: 'trimmed', partition, from, to: range.to });
  }

  async #firstToTell(epoch: string, from: number, to: number): Promise<number> {
    const { commands, groupKeys } = this.options;
    return Number(await commands.run(TOLD, [groupKeys.state], [epoch, from, to]));
  }
}

type ProgressReply = readonly [
  epoch: string,
  history: string,
  end: number,
  oldest: string,
  pending: number,
  oldestPending: string,
  last: number,
  wall: number,
];
