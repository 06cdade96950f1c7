import { RelayError } from '../core/errors.js';
import { loadScript } from '../redis/script.js';
import type { ReadFrom } from '../wire/read-from.js';
import type { LogAccess, PartitionDescription } from './access.js';
import { parseId } from './entry.js';
import { endOf, type Place, placeBefore, placeOf } from './groups/locate.js';
import { fieldsOf, orNothing } from './groups/replies.js';

const CUT = loadScript(import.meta.url, 'cut');

/** What a trim does in one partition. */
export interface TrimRow {
  readonly topic: string;
  readonly partition: number;
  /** Oldest offset now. */
  readonly first: number;
  readonly newFirst: number;
  readonly entries: number;
  /** Groups that have not been given all of that, and how much. */
  readonly unread: readonly { readonly group: string; readonly entries: number }[];
}

interface Cut {
  readonly row: TrimRow;
  readonly epoch: string;
  readonly through: Place;
}

/**
 * What a trim up to `to` would cut: all up to and with a position, in its partition; or in all of them what is older than a time;
 * or, `latest`, everything.
 *
 * @throws {RelayError} `bad_request`: it is no position of this log
 */
export async function planTrim(log: LogAccess, topic: string, to: ReadFrom): Promise<readonly Cut[]> {
  const all = await log.describe(topic);
  const partitions =
    typeof to === 'object' && 'offset' in to ? all.filter(({ partition }) => partition === to.partition) : all;
  if (partitions.length === 0)
    throw new RelayError('bad_request', `topic ${JSON.stringify(topic)} has no such partition`);
  return Promise.all(
    partitions.map(async (partition): Promise<Cut> => {
      const through = await throughOf(log, partition, to);
      const { first, epoch } = partition;
      const newFirst = Math.max(first, through.offset + 1);
      const unread = await unreadUpTo(log, partition, newFirst - 1);
      const row = { topic, partition: partition.partition, first, newFirst, entries: newFirst - first, unread };
      return { row, epoch, through };
    }),
  );
}

async function throughOf(log: LogAccess, partition: PartitionDescription, to: ReadFrom): Promise<Place> {
  if (to === 'latest') return endOf(partition);
  if (to === 'earliest') return { ms: 0, offset: partition.first - 1 };
  if (!('offset' in to)) return placeBefore(log, partition, to.ms);
  if (to.epoch !== partition.epoch || to.offset > endOf(partition).offset)
    throw new RelayError('bad_request', 'no position of this log as it is now');
  return placeOf(log, partition, to.offset);
}

async function unreadUpTo(
  log: LogAccess,
  { topic, partition, first }: PartitionDescription,
  offset: number,
): Promise<TrimRow['unread']> {
  const { stream } = log.keys.partition(topic, partition);
  const groups = (await log.connection.redis.xinfo('GROUPS', stream).catch(orNothing)) as unknown[][];
  return groups.flatMap((fields) => {
    const { name, 'last-delivered-id': at } = fieldsOf(fields);
    const entries = offset - Math.max(first - 1, parseId(String(at)).seq);
    return entries > 0 ? [{ group: String(name), entries }] : [];
  });
}

/** @throws {RelayError} `conflict`: the log has begun anew meanwhile */
export async function trimPartition(log: LogAccess, { row, epoch, through }: Cut): Promise<TrimRow> {
  if (row.entries === 0) return row;
  const { stream, meta, segments } = log.keys.partition(row.topic, row.partition);
  const [status] = (await log.connection.run(CUT, [stream, meta, segments], [epoch, through.ms, through.offset])) as [
    string,
  ];
  if (status === 'epoch')
    throw new RelayError('conflict', `partition ${row.partition}: its log has begun anew; try again`);
  return row;
}
