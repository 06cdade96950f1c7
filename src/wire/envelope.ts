/** Version of the form below. A pod that meets another one counts the entry, says so once and goes on. */
export const FORMAT_VERSION = 1;

/**
 * What an entry does at the sockets that it goes to. `event`: they get it. The others are written by a Socket.IO server's
 * `socketsJoin`, `socketsLeave` and `disconnectSockets`, so that they keep their place among the events.
 */
export type EntryKind = 'event' | 'join' | 'leave' | 'disconnect';

/** The first line of an entry: what the log needs to know of an event, and clients don't. */
export interface EntryHeader {
  readonly version: number;
  readonly kind: EntryKind;
  /** Rooms that it goes to, scoped by tenant, or by Socket.IO namespace. */
  readonly rooms: readonly string[];
  /** Whoever is in one of these doesn't get it. */
  readonly except: readonly string[];
  /** Socket.IO namespace of its packet. */
  readonly namespace: string;
  /** Of a `join` or `leave`: which rooms. Of a `disconnect`: whether the connection ends too. */
  readonly operand: unknown;
  /** Who published it: `user:<sub>` or `key:<fingerprint>`, scoped by tenant; in the adapter, the process. */
  readonly publisher: string;
  /** The event's id; with the publisher it names one event for ever, also when a failover brought it twice. */
  readonly id: string;
}

const NONE: readonly string[] = Object.freeze([]);
const KINDS: Readonly<Record<string, EntryKind>> = { j: 'join', l: 'leave', d: 'disconnect' };
const LETTERS = { event: undefined, join: 'j', leave: 'l', disconnect: 'd' } as const;

/** What most entries don't have is left out. */
export type NewHeader = Pick<EntryHeader, 'rooms' | 'publisher' | 'id'> & Partial<EntryHeader>;

/** `<header JSON>\n<payload>`: one field of a stream entry, since parsing costs grow with fields. */
export function encodeEntry(header: NewHeader, payload: string): string {
  return `${encodeHeader(header)}${payload}`;
}

/** What stands before the payload of all entries with the same header. */
export function encodeHeader(header: NewHeader): string {
  const { rooms, publisher, id, kind = 'event', except = NONE, namespace = '/', operand } = header;
  const line: Record<string, unknown> = { v: FORMAT_VERSION, r: rooms, p: publisher, i: id };
  if (kind !== 'event') line.t = LETTERS[kind];
  if (except.length > 0) line.x = except;
  if (namespace !== '/') line.n = namespace;
  if (operand !== undefined) line.o = operand;
  return `${JSON.stringify(line)}\n`;
}

/** Headers without an id, such as a Socket.IO server's to one room: all of their entries share one. */
const shared = new Map<string, EntryHeader>();
const MAX_SHARED = 1000;

/** The header of an entry's first line, or `undefined` for what none of us wrote. */
export function decodeHeader(line: string): EntryHeader | undefined {
  const known = shared.get(line);
  if (known) return known;
  const header = parseHeader(line);
  if (header?.id === '' && line.length < 1000) {
    if (shared.size >= MAX_SHARED) shared.clear();
    shared.set(line, header);
  }
  return header;
}

function parseHeader(line: string): EntryHeader | undefined {
  let raw: unknown;
  try {
    raw = JSON.parse(line);
  } catch {
    return undefined;
  }
  if (typeof raw !== 'object' || raw === null) return undefined;
  const { v, r, p, i, t, x = NONE, n = '/', o } = raw as Record<string, unknown>;
  if (!Number.isInteger(v)) return undefined;
  const kind = t === undefined ? 'event' : typeof t === 'string' && Object.hasOwn(KINDS, t) ? KINDS[t] : undefined;
  if (v !== FORMAT_VERSION || kind === undefined) return unknownHeader(v === FORMAT_VERSION ? 0 : (v as number));
  if (!areTexts(r) || typeof p !== 'string' || typeof i !== 'string') return undefined;
  if (!areTexts(x) || typeof n !== 'string') return undefined;
  return { version: v, kind, rooms: r, except: x, namespace: n, operand: o, publisher: p, id: i };
}

function areTexts(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((item) => typeof item === 'string');
}

function unknownHeader(version: number): EntryHeader {
  return {
    version,
    kind: 'event',
    rooms: NONE,
    except: NONE,
    namespace: '/',
    operand: undefined,
    publisher: '',
    id: '',
  };
}
