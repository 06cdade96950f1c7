import type { Redis } from 'ioredis';
import { parseId } from './entry.js';
import { type EpochRecord, survivingTail } from './epochs.js';
import type { OffsetTimes } from './offset-times.js';

/** Entries in a row that somebody deleted, beyond which the log behind them counts as lost. */
const DELETED_RUN = 16;

/** The newest entry of the old log that the new one has as well; offset 0: there is none. */
export interface Common {
  readonly ms: number;
  readonly offset: number;
  /** It was seen there, not concluded. */
  readonly isProven: boolean;
}

/** What a reader knows of the log that ended. */
interface OldLog {
  readonly epoch: string;
  readonly times: OffsetTimes;
  /** Newest entry that it dispatched. */
  readonly at: { readonly ms: number; readonly offset: number };
  /** As the new log tells it. */
  readonly history: readonly EpochRecord[];
}

/** Binary search over what the reader remembers of the old log; beyond that, what the epoch history says. */
export async function newestInCommon(redis: Redis, stream: string, old: OldLog): Promise<Common> {
  const { epoch, times, at, history } = old;
  const nothing = { ms: 0, offset: 0, isProven: false };
  const [head] = await redis.xrange(stream, '-', '+', 'COUNT', 1);
  if (!head) return nothing;
  const oldest = parseId(head[0]).seq;
  const from = Math.max(times.oldest ?? Number.POSITIVE_INFINITY, oldest);
  let newest: Common | undefined;
  for (let low = from, high = at.offset; low <= high; ) {
    const middle = (low + high) >>> 1;
    const found = await commonFrom(redis, stream, times, middle, high);
    if (found) low = found.offset + 1;
    else high = middle - 1;
    newest = found ?? newest;
  }
  if (newest) return newest;
  // everything back to this log's head is remembered, and it is another log
  if (from <= at.offset && from === oldest) return nothing;
  const tail = survivingTail(history, epoch);
  return { ...(tail && tail.offset < at.offset ? tail : at), isProven: false };
}

/**
 * A remembered entry from `low` to `high` that the log still holds. One that is missing may have been deleted by itself, so
 * some behind it are looked for before the log counts as another one from there on.
 */
async function commonFrom(
  redis: Redis,
  stream: string,
  times: OffsetTimes,
  low: number,
  high: number,
): Promise<Common | undefined> {
  const remembered: string[] = [];
  for (let offset = low; offset <= high && remembered.length <= DELETED_RUN; offset++) {
    const ms = times.get(offset);
    if (ms !== undefined) remembered.push(`${ms}-${offset}`);
  }
  const [first, last] = [remembered[0], remembered.at(-1)];
  if (first === undefined || last === undefined) return undefined;
  const upTo = (id: string) => redis.xrange(stream, first, id, 'COUNT', remembered.length);
  // the second one brings many entries along, and is rarely needed
  const found = (await upTo(first)).length > 0 ? [first] : (await upTo(last)).map(([id]) => id);
  const id = found.filter((each) => remembered.includes(each)).at(-1);
  return id === undefined ? undefined : { ms: parseId(id).ms, offset: parseId(id).seq, isProven: true };
}
