import { decodeHeader, FORMAT_VERSION } from '../../wire/envelope.js';
import type { EntryText } from './group-entry.js';

/** As Redis answers it, in texts: binary attachments are damaged in them, and read again. */
export type RawEntry = readonly [id: string, fields: readonly string[]];

const BEGINNING = `{"v":${FORMAT_VERSION},`;
/** Nowhere but as a key: within a text its second quote would be escaped. */
const KIND = '"t":';
const NONE: readonly Buffer[] = Object.freeze([]);

/** The offset of one of ours in the log, or 0: a stranger's id has no place among ours. */
export function offsetOf([id, [key]]: RawEntry): number {
  return key !== undefined && key.length > 0 && id.endsWith(`-${key}`) ? Number(key) : 0;
}

/** What was redriven has the id that it had in the log among its fields. */
export function unwrapped([, fields]: RawEntry): RawEntry {
  return [fields[1] ?? '0-0', fields.slice(2)];
}

/** How many binary parts stand beside its text. */
export function attachmentsOf([, fields]: RawEntry): number {
  return Math.max(0, Math.floor((fields.length - 2) / 2));
}

/**
 * `foreign`: somebody else's. `unknown`: ours, of a format that this version doesn't know. `other`: it is no event, but what a
 * Socket.IO server asks of the others.
 */
export function readEntry(
  raw: RawEntry,
  attachments: readonly Buffer[] = NONE,
): (EntryText & { readonly header: string }) | 'foreign' | 'unknown' | 'other' {
  const offset = offsetOf(raw);
  const [id, [, body]] = raw;
  const end = body?.indexOf('\n') ?? -1;
  if (offset === 0 || body === undefined || end < 0) return 'foreign';
  const header = body.slice(0, end);
  // of most headers this is all that is asked of them
  if (!header.startsWith(BEGINNING) || header.includes(KIND)) {
    const decoded = decodeHeader(header);
    if (!decoded) return 'foreign';
    if (decoded.version !== FORMAT_VERSION) return 'unknown';
    if (decoded.kind !== 'event') return 'other';
  }
  return { ms: Number(id.slice(0, id.indexOf('-'))), offset, header, payload: body.slice(end + 1), attachments };
}
