import { loadScript } from '../../redis/script.js';
import type { LogAccess, PartitionDescription } from '../access.js';
import { parseId } from '../entry.js';

const LOCATE = loadScript(import.meta.url, 'locate');

/** Up to where something has been read. */
export interface Place {
  readonly ms: number;
  readonly offset: number;
}

/** Newest entry of a partition. */
export function endOf({ logEnd }: PartitionDescription): Place {
  const { ms, seq } = parseId(logEnd.slice(logEnd.lastIndexOf(':') + 1));
  return { ms, offset: seq };
}

/** Before the oldest entry that is there: whoever begins here misses nothing that he could have. */
export function beginningOf({ first }: PartitionDescription): Place {
  return { ms: 0, offset: first - 1 };
}

/** Where an offset stands; one that the partition doesn't have is that of its nearer end. */
export async function placeOf(log: LogAccess, partition: PartitionDescription, offset: number): Promise<Place> {
  const end = endOf(partition);
  if (offset < partition.first) return beginningOf(partition);
  if (offset >= end.offset) return end;
  const { stream } = log.keys.partition(partition.topic, partition.partition);
  const ms = (await log.connection.run(LOCATE, [stream], [offset])) as string | null;
  return ms === null ? end : { ms: Number(ms), offset };
}

/** Before the first entry of that time, or of after it. */
export async function placeBefore(log: LogAccess, partition: PartitionDescription, ms: number): Promise<Place> {
  const { topic, partition: index, first } = partition;
  const after = { ms: Math.max(0, Math.floor(ms)), offset: 0 };
  const { entries } = await log.page(topic, index, after, { entries: 1, bytes: 1 });
  const next = entries[0];
  if (!next) return endOf(partition);
  return next.offset <= first ? beginningOf(partition) : placeOf(log, partition, next.offset - 1);
}
