import { RelayError } from '../../core/errors.js';
import { loadScript } from '../../redis/script.js';
import { formatPosition, type Position } from '../../wire/position.js';
import type { LogAccess, PartitionDescription } from '../access.js';
import { ownNameOf } from './group-name.js';
import { beginningOf, endOf, type Place, placeBefore, placeOf } from './locate.js';
import { type GroupDescription, redisNow } from './survey.js';

const RESET = loadScript(import.meta.url, 'reset');

/** Where a group is to stand: it reads on behind that. */
export type ResetTarget =
  /** Before all that the log has, or behind it. */
  | { readonly to: 'earliest' | 'latest' }
  /** Before the first entry of that time, ms since 1970. */
  | { readonly to: 'time'; readonly ms: number }
  /** As long ago, by Redis's clock. */
  | { readonly to: 'age'; readonly ms: number }
  /** So many entries on, or back. */
  | { readonly to: 'shift'; readonly by: number }
  /** In every partition behind that entry. */
  | { readonly to: 'offset'; readonly offset: number }
  /** In its partition; the others stay. */
  | { readonly to: 'position'; readonly position: Position };

/** Why it is not where it was wished: that is trimmed, not yet there, or of an epoch of which less survived. */
export type Clamp = 'trimmed' | 'beyond' | 'epoch';

/** What a reset does in one partition. */
export interface ResetRow {
  readonly group: string;
  readonly topic: string;
  readonly partition: number;
  /** Absent: there was no such group here. */
  readonly currentPosition: string | undefined;
  readonly newPosition: string;
  /** Entries that it has to read from there. */
  readonly lag: number;
  readonly clamped: Clamp | undefined;
}

interface Step {
  readonly row: ResetRow;
  readonly epoch: string;
  readonly place: Place;
}

/**
 * What a reset would do, partition by partition.
 *
 * @param rows where the group stands; empty: it would be made
 * @throws {RelayError} `bad_request`: there is nothing to shift, or it is no position of this log
 */
export async function planReset(
  log: LogAccess,
  topic: string,
  group: string,
  rows: readonly GroupDescription[],
  target: ResetTarget,
): Promise<readonly Step[]> {
  const all = await log.describe(topic);
  const partitions =
    target.to === 'position' ? all.filter(({ partition }) => partition === target.position.partition) : all;
  if (partitions.length === 0)
    throw new RelayError('bad_request', `topic ${JSON.stringify(topic)} has no such partition`);
  const now = await redisNow(log.connection.redis);
  return Promise.all(
    partitions.map(async (partition): Promise<Step> => {
      const row = rows.find((each) => each.partition === partition.partition);
      const { place, clamped } = await placeFor(log, partition, row, target, now);
      const { epoch } = partition;
      return {
        row: {
          group,
          topic,
          partition: partition.partition,
          currentPosition: row?.currentPosition,
          newPosition: formatPosition(epoch, partition.partition, place.ms, place.offset),
          lag: endOf(partition).offset - place.offset,
          clamped,
        },
        epoch,
        place,
      };
    }),
  );
}

type Choice = { readonly place: Place; readonly clamped?: Clamp };

async function placeFor(
  log: LogAccess,
  partition: PartitionDescription,
  row: GroupDescription | undefined,
  target: ResetTarget,
  now: number,
): Promise<Choice> {
  switch (target.to) {
    case 'earliest':
      return { place: beginningOf(partition) };
    case 'latest':
      return { place: endOf(partition) };
    case 'time':
      return { place: await placeBefore(log, partition, target.ms) };
    case 'age':
      return { place: await placeBefore(log, partition, now - target.ms) };
    case 'shift': {
      if (row?.lag === undefined)
        throw new RelayError(
          'bad_request',
          `there is nothing to shift by ${target.by}: the group has no place in partition ${partition.partition}`,
        );
      return offsetIn(log, partition, endOf(partition).offset - row.lag + target.by);
    }
    case 'offset':
      return offsetIn(log, partition, target.offset);
    case 'position':
      return positionIn(log, partition, target.position);
    default:
      target satisfies never;
      throw new TypeError('no such target');
  }
}

async function offsetIn(log: LogAccess, partition: PartitionDescription, offset: number): Promise<Choice> {
  const clamped = offset < partition.first - 1 ? 'trimmed' : offset > endOf(partition).offset ? 'beyond' : undefined;
  return { place: await placeOf(log, partition, offset), clamped };
}

async function positionIn(log: LogAccess, partition: PartitionDescription, position: Position): Promise<Choice> {
  const { epoch, offset } = position;
  if (epoch !== partition.epoch) {
    const survivor = await log.survivor(partition.topic, partition.partition, epoch);
    if (survivor && survivor.offset < offset) {
      const { place } = await offsetIn(log, partition, survivor.offset);
      return { place, clamped: 'epoch' };
    }
  } else if (offset > endOf(partition).offset) {
    throw new RelayError('bad_request', 'no position of this log: it has not come so far');
  }
  return offsetIn(log, partition, offset);
}

/**
 * Carries out one step.
 *
 * @returns what was done: it stands further on than planned where that was trimmed meanwhile
 * @throws {RelayError} `conflict`: the log is no longer the one for which it was planned
 */
export async function resetPartition(log: LogAccess, { row, epoch, place }: Step): Promise<ResetRow> {
  const { topic, partition, group } = row;
  const { stream, meta } = log.keys.partition(topic, partition);
  const { state, failures } = log.keys.group(topic, partition, ownNameOf(group));
  const [status, offset] = (await log.connection.run(
    RESET,
    [stream, meta, state, failures],
    [group, epoch, place.ms, place.offset],
  )) as [string, number];
  if (status !== 'ok')
    throw new RelayError(
      'conflict',
      `partition ${partition}: its log ${status === 'gone' ? 'was deleted' : 'has begun anew'}; try again`,
    );
  if (offset === place.offset) return row;
  const newPosition = formatPosition(epoch, partition, 0, offset);
  return { ...row, newPosition, lag: row.lag - (offset - place.offset), clamped: 'trimmed' };
}
