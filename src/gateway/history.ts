import { RelayError } from '../core/errors.js';
import { type Entry, type EventLog, lossesOf } from '../log/index.js';
import { scoped } from '../wire/names.js';
import { formatPosition } from '../wire/position.js';
import { parseFrom } from '../wire/read-from.js';
import type { Locator } from './locator.js';

/** Entries looked at for one answer: a quiet room in a busy partition pages by entries scanned. */
const MAX_SCANNED = 5000;

export interface HistoryEvent {
  readonly position: string;
  readonly event: string;
  readonly data: unknown;
  readonly meta: unknown;
  /** Binary parts, base64; `data` refers to them as Socket.IO's placeholders do. */
  readonly attachments?: readonly string[];
}

export interface HistoryPage {
  readonly events: readonly HistoryEvent[];
  /** Where the next page begins: give it as `from`. */
  readonly next: string;
  /** There is more to scan. */
  readonly more: boolean;
  /** Entries that are gone between `from` and `next`. Several losses are told as one, which begins and ends with them. */
  readonly gap?: HistoryGap;
}

export interface HistoryGap {
  readonly from: string;
  readonly to: string;
  readonly reason: 'trimmed' | 'epoch';
}

/**
 * One page of a room's events, oldest first.
 *
 * @throws {RelayError} `bad_request`, or `unavailable` when Redis can't answer
 */
export async function readHistory(
  log: EventLog,
  locator: Locator,
  {
    tenant,
    room,
    from,
    limit,
  }: { readonly tenant: string; readonly room: string; readonly from: string; readonly limit: number },
): Promise<HistoryPage> {
  const partition = log.partitionOf(tenant);
  const start = parseFrom(from, log.clock.at());
  if (start === undefined)
    throw new RelayError('bad_request', 'from: wants a position, earliest, latest, a time or an age such as 10m');
  const wanted = scoped(tenant, room);
  let after: { ms: number; offset: number };
  let gap: HistoryGap | undefined;
  if (start === 'earliest') after = { ms: 0, offset: 0 };
  else if (start === 'latest') after = log.newest(partition);
  else if (!('offset' in start)) after = { ms: start.ms, offset: 0 };
  else {
    if (start.partition !== partition) throw new RelayError('bad_request', "from: another partition's position");
    const place = await locator.locate(start, partition);
    if (!place) throw new RelayError('bad_request', 'from: no position of this log');
    after = { ms: place.ms, offset: place.offset };
    if (place.gap) {
      const { from, to, reason } = place.gap;
      const at = (end: typeof from): string => formatPosition(end.epoch, partition, end.ms, end.offset);
      gap = { from: at(from), to: at(to), reason };
    }
  }
  let isPlace = typeof start === 'object' && 'offset' in start;
  let epoch: string | undefined;
  const events: HistoryEvent[] = [];
  let scanned = 0;
  let bytes = 0;
  for (;;) {
    const page = await log
      .page(partition, after, { entries: 500, bytes: 1_000_000 })
      .catch((error: unknown) => Promise.reject(new RelayError('unavailable', undefined, { cause: error })));
    // offsets mean something else there; whoever asks again begins with its own position
    if (epoch !== undefined && page.epoch !== epoch) throw new RelayError('unavailable', 'the log began a new epoch');
    epoch = page.epoch;
    let end = after;
    let isCut = false;
    for (const entry of page.entries) {
      if (!entry.header.rooms.includes(wanted)) continue;
      if (events.length >= limit || (events.length > 0 && bytes + entry.size > 2_000_000)) {
        isCut = true;
        break;
      }
      const event = toEvent(entry, page.epoch, partition);
      if (event) events.push(event);
      bytes += entry.size;
      end = { ms: entry.ms, offset: entry.offset };
    }
    if (!isCut) end = page.scanned;
    for (const { from, to } of lossesOf(page, after, isPlace)) {
      // behind the cut it belongs to the next page
      if (isCut && to > end.offset) break;
      const at = (offset: number): string => formatPosition(page.epoch, partition, after.ms, offset);
      gap = widened(gap, { from: at(from), to: at(to), reason: 'trimmed' });
    }
    isPlace ||= end.offset > 0;
    scanned += page.entries.length;
    after = end;
    // a stranger's entry moves where to read on, not what a position means
    const last = isCut ? end : page.last;
    const next = last.offset === 0 && page.isLast ? page.newest : last;
    const isDone = page.isLast && !isCut;
    if (isDone || isCut || scanned >= MAX_SCANNED)
      return {
        events,
        next: formatPosition(page.epoch, partition, next.ms, next.offset),
        more: !isDone,
        ...(gap && { gap }),
      };
  }
}

/** The reason of the first loss is kept: what came first is what a client must know of. */
function widened(gap: HistoryGap | undefined, { from, to, reason }: HistoryGap): HistoryGap {
  return gap ? { ...gap, to } : { from, to, reason };
}

/** `undefined`: somebody wrote it into the stream by hand, and it is no event. */
function toEvent(entry: Entry, epoch: string, partition: number): HistoryEvent | undefined {
  let parts: readonly unknown[];
  try {
    parts = JSON.parse(entry.payload.toString('utf8'));
  } catch {
    return undefined;
  }
  if (!Array.isArray(parts) || typeof parts[0] !== 'string') return undefined;
  const [event, data, meta] = parts;
  return {
    position: formatPosition(epoch, partition, entry.ms, entry.offset),
    event,
    data,
    meta,
    ...(entry.attachments.length > 0 && { attachments: entry.attachments.map((part) => part.toString('base64')) }),
  };
}
