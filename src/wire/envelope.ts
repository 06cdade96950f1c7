/** Version of the form below. A pod that meets another one counts the entry, says so once and goes on. */
export const FORMAT_VERSION = 1;

/** The first line of an entry: what the log needs to know of an event, and clients don't. */
export interface EntryHeader {
  readonly version: number;
  /** Rooms that it goes to, scoped by tenant. */
  readonly rooms: readonly string[];
  /** Who published it: `user:<sub>` or `key:<fingerprint>`, scoped by tenant. */
  readonly publisher: string;
  /** The event's id; with the publisher it names one event for ever, also when a failover brought it twice. */
  readonly id: string;
}

/** `<header JSON>\n<payload>`: one field of a stream entry, since parsing costs grow with fields. */
export function encodeEntry(header: Omit<EntryHeader, 'version'>, payload: string): string {
  return `${JSON.stringify({ v: FORMAT_VERSION, r: header.rooms, p: header.publisher, i: header.id })}\n${payload}`;
}

/** The header of an entry's first line, or `undefined` for what none of us wrote. */
export function decodeHeader(line: string): EntryHeader | undefined {
  let raw: unknown;
  try {
    raw = JSON.parse(line);
  } catch {
    return undefined;
  }
  if (typeof raw !== 'object' || raw === null) return undefined;
  const { v, r, p, i } = raw as Record<string, unknown>;
  if (!Number.isInteger(v)) return undefined;
  if (v !== FORMAT_VERSION) return { version: v as number, rooms: [], publisher: '', id: '' };
  const isOurs = Array.isArray(r) && r.every((room) => typeof room === 'string') && typeof p === 'string';
  return isOurs && typeof i === 'string' ? { version: v, rooms: r as string[], publisher: p, id: i } : undefined;
}
