import { decodeHeader, type EntryHeader, FORMAT_VERSION } from '../wire/envelope.js';

/** What an entry really takes in memory beside its bytes: objects, index, frame. Measured at ~450 bytes. */
const OVERHEAD_BYTES = 450;

const NONE: readonly Buffer[] = Object.freeze([]);

/** One event of the log, as read back. */
export interface Entry {
  readonly ms: number;
  readonly offset: number;
  readonly header: EntryHeader;
  /** The JSON array `[event, data, meta]` as clients get it, without the position. */
  readonly payload: Buffer;
  readonly attachments: readonly Buffer[];
  /** Bytes that it takes in memory. */
  readonly size: number;
}

/** `[id, [field, value, …]]` as Redis answers it. */
export type RawEntry = readonly [Buffer, readonly Buffer[]];

export interface EntryId {
  readonly ms: number;
  readonly seq: number;
  /** As Redis writes it: a stranger's id may be beyond what a number holds. */
  readonly text: string;
}

export function parseId(id: Buffer | string): EntryId {
  const text = typeof id === 'string' ? id : id.toString('latin1');
  const dash = text.indexOf('-');
  return { ms: Number(text.slice(0, dash)), seq: Number(text.slice(dash + 1)), text };
}

/**
 * The first field's name is the entry's own offset: so a stranger's entry, or a copy of ours under another id, never passes
 * for the one that belongs there.
 *
 * `'foreign'`: somebody else's. `'unknown'`: ours, of a format that this version doesn't know.
 */
export function parseEntry(id: EntryId, fields: readonly Buffer[]): Entry | 'foreign' | 'unknown' {
  const [key, body] = fields;
  if (!key || !body || !isNumber(key, id.seq)) return 'foreign';
  const line = body.indexOf(10);
  if (line < 0) return 'foreign';
  const header = decodeHeader(body.toString('utf8', 0, line));
  if (!header) return 'foreign';
  if (header.version !== FORMAT_VERSION) return 'unknown';
  const payload = body.subarray(line + 1);
  const attachments = fields.length > 2 ? fields.filter((_, index) => index > 2 && index % 2 === 1) : NONE;
  let size = OVERHEAD_BYTES + body.length;
  for (const { length } of attachments) size += length;
  return { ms: id.ms, offset: id.seq, header, payload, attachments, size };
}

/** `text` is the number as Redis writes it. */
function isNumber(text: Buffer, number: number): boolean {
  let value = 0;
  for (const digit of text) {
    if (digit < 48 || digit > 57) return false;
    value = value * 10 + digit - 48;
  }
  return value === number && text[0] !== 48;
}
