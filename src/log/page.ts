import type { Connection } from '../redis/connect.js';
import type { PartitionKeys } from '../redis/keys.js';
import { loadScript } from '../redis/script.js';
import { type Entry, parseEntry, parseId, type RawEntry } from './entry.js';

const PAGE = loadScript(import.meta.url, 'page');
/** Entries of the first read backwards, whose sizes nobody knows before; the next ones go by the mean so far. */
const RECENT_COUNT = 16;
/** Of a later one: sizes may change, and Redis builds its whole answer in memory. */
const RECENT_MAX_COUNT = 100;

/** A run of consecutive entries, and what the log held when they were read. */
export interface Page {
  readonly epoch: string;
  readonly partition: number;
  readonly entries: readonly Entry[];
  /** Oldest offset in the log. What is older is trimmed. */
  readonly first: number;
  /** Newest offset in the log. */
  readonly newest: { readonly ms: number; readonly offset: number };
  /** Everything up to here was looked at, strangers' and unknown entries among it. */
  readonly scanned: { readonly ms: number; readonly offset: number };
  /** The newest entry of ours among them: a position that will be found again. */
  readonly last: { readonly ms: number; readonly offset: number };
  /** Offsets inside the page that are missing, though newer than the oldest entry: somebody deleted them. Both ends belong to it. */
  readonly holes: readonly { readonly from: number; readonly to: number }[];
  /** Nothing newer was in the log. */
  readonly isLast: boolean;
}

type PageReply = [Buffer, number, number, number, RawEntry[]];

export async function readPage(
  connection: Connection,
  keys: PartitionKeys,
  partition: number,
  after: { readonly ms: number; readonly offset: number },
  limits: { readonly entries: number; readonly bytes: number },
): Promise<Page> {
  const args = [`${after.ms}-${after.offset}`, limits.entries, limits.bytes];
  const reply = (await connection.runBuffer(PAGE, [keys.stream, keys.meta], args)) as PageReply;
  const [epoch, first, newestOffset, newestMs, raw] = reply;
  const entries: Entry[] = [];
  const holes: { from: number; to: number }[] = [];
  let scanned = { ms: after.ms, offset: after.offset };
  let last = scanned;
  // without its meta the log can't say how far it has come
  const end = epoch.length > 0 ? newestOffset : Number.POSITIVE_INFINITY;
  // a time without an offset says nothing of what stands before the first entry behind it
  let isPlaced = after.offset > 0 || after.ms === 0;
  for (const [rawId, fields] of raw) {
    const at = parseId(rawId);
    // what is whole, and stands where the log has not come to yet, was appended by nobody
    const entry = at.seq > end ? 'foreign' : parseEntry(at, fields);
    if (entry === 'foreign') {
      // its id may stand above ours at this ms; our entries behind it then begin at the next ms
      scanned = { ms: at.seq > scanned.offset ? at.ms + 1 : at.ms, offset: scanned.offset };
      continue;
    }
    // a position whose ms was made up finds entries at or below its offset: they are not behind it
    if (at.seq <= scanned.offset) continue;
    const expected = Math.max(scanned.offset + 1, first);
    if (isPlaced && at.seq > expected) holes.push({ from: expected, to: at.seq - 1 });
    isPlaced = true;
    scanned = last = { ms: at.ms, offset: at.seq };
    if (entry !== 'unknown') entries.push(entry);
  }
  const expected = Math.max(scanned.offset + 1, first);
  if (isPlaced && raw.length === 0 && expected <= newestOffset) holes.push({ from: expected, to: newestOffset });
  const isLast = scanned.offset >= newestOffset || raw.length === 0;
  return {
    epoch: epoch.toString('latin1'),
    partition,
    entries,
    first,
    newest: { ms: newestMs, offset: newestOffset },
    scanned,
    last,
    holes,
    isLast,
  };
}

/** The newest entries up to and with `upTo`, oldest first, as many as the limits allow. */
export async function readRecent(
  connection: Connection,
  keys: PartitionKeys,
  upTo: { readonly ms: number; readonly offset: number },
  limits: { readonly entries: number; readonly bytes: number },
): Promise<readonly Entry[]> {
  const found: Entry[] = [];
  let bytes = 0;
  let count = RECENT_COUNT;
  let next = `${upTo.ms}-${upTo.offset}`;
  while (found.length < limits.entries && bytes < limits.bytes) {
    const args = [keys.stream, next, '-', 'COUNT', Math.min(count, limits.entries - found.length)];
    const raw = (await connection.redis.callBuffer('XREVRANGE', ...args)) as readonly RawEntry[];
    for (const [rawId, fields] of raw) {
      const id = parseId(rawId);
      next = `(${id.ms}-${id.seq}`;
      const entry = parseEntry(id, fields);
      if (typeof entry === 'string' || entry.offset > upTo.offset) continue;
      const newer = found.at(-1);
      // without holes, or not at all
      if (newer && entry.offset !== newer.offset - 1) return found.reverse();
      found.push(entry);
      bytes += entry.size;
    }
    if (raw.length === 0) break;
    const mean = Math.max(1, bytes / Math.max(1, found.length));
    count = Math.max(1, Math.min(2 * count, RECENT_MAX_COUNT, Math.ceil((limits.bytes - bytes) / mean)));
  }
  return found.reverse();
}
