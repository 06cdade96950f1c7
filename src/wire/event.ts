import { RelayError } from '../core/errors.js';
import { encodeEntry } from './envelope.js';
import { isName, isPublishableEvent, isRoom, scoped } from './names.js';

/** The topic that events go to. */
export const EVENTS_TOPIC = 'events';

/** What some receiver's parser can't follow would end its connection, again and again. */
const MAX_DEPTH = 1000;
const utf8 = new TextEncoder();
const NAME = 'wants 1 to 200 characters without control characters';

/** What somebody asks to be published, not yet checked. */
export interface EventRequest {
  readonly room?: unknown;
  readonly event?: unknown;
  readonly data?: unknown;
  readonly id?: unknown;
}

export interface CheckedEvent {
  readonly room: string;
  readonly event: string;
  readonly data: unknown;
  /** The publisher's own, by which a retry lands once. */
  readonly id: string | undefined;
  readonly isBinary: boolean;
}

/** The JSON array as clients get it; binary data goes beside it, as Socket.IO has it. */
export interface EncodedEvent<Part extends Uint8Array> {
  readonly payload: string;
  readonly attachments: readonly Part[];
}

export interface Origin {
  readonly tenant: string;
  /** `user:<sub>`, `key:<fingerprint>` or `cli`: idempotency ids are scoped by tenant and this. */
  readonly publisher: string;
  /** The event's id if its publisher set none. */
  readonly newId: string;
  /** Redis's time, ms since 1970. */
  readonly at: number;
}

export interface ComposedEvent<Part extends Uint8Array> extends EncodedEvent<Part> {
  /** Scoped by tenant; '' if it goes to none. */
  readonly room: string;
  /** The entry as the log holds it. */
  readonly body: string;
  readonly idempotency: { readonly scope: string; readonly id: string } | undefined;
}

/** @throws {RelayError} `bad_request`, naming the field */
export function checkEvent({ room, ...request }: EventRequest): CheckedEvent {
  if (!isRoom(room)) throw new RelayError('bad_request', `room: ${NAME}`);
  return { room, ...checkContent(request) };
}

/**
 * Of an event for back ends only, which goes to no room.
 *
 * @throws {RelayError} `bad_request`, naming the field
 */
export function checkContent({ event, data = null, id }: Omit<EventRequest, 'room'>): Omit<CheckedEvent, 'room'> {
  if (!isName(event)) throw new RelayError('bad_request', `event: ${NAME}`);
  if (!isPublishableEvent(event)) throw new RelayError('bad_request', `event: ${JSON.stringify(event)} is reserved`);
  if (id !== undefined && !isName(id)) throw new RelayError('bad_request', `id: ${NAME}`);
  return { event, data, id, isBinary: hasBinary(data) };
}

/**
 * An event as it crosses the wire and as the log holds it.
 *
 * @param encode of what {@link CheckedEvent.isBinary} says that JSON can't hold it
 * @throws {RelayError} `payload_too_large`
 */
export function composeEvent<Part extends Uint8Array = never>(
  { room, event, data, id }: Omit<CheckedEvent, 'room'> & { readonly room?: string },
  { tenant, publisher, newId, at }: Origin,
  maxBytes: number,
  encode: (args: readonly unknown[]) => EncodedEvent<Part> = encodeJson,
): ComposedEvent<Part> {
  const meta = { room, id: id ?? newId, at };
  const { payload, attachments } = encode([event, data, meta]);
  const bytes = attachments.reduce((sum, part) => sum + part.length, utf8.encode(payload).length);
  if (bytes > maxBytes)
    throw new RelayError('payload_too_large', `the event has ${bytes} bytes, the limit is ${maxBytes}`);
  const scope = scoped(tenant, publisher);
  const rooms = room === undefined ? [] : [scoped(tenant, room)];
  return {
    room: rooms[0] ?? '',
    payload,
    attachments,
    body: encodeEntry({ rooms, publisher: scope, id: meta.id }, payload),
    idempotency: id === undefined ? undefined : { scope, id },
  };
}

function encodeJson(args: readonly unknown[]): EncodedEvent<never> {
  return { payload: JSON.stringify(args), attachments: [] };
}

/**
 * Level by level: what is nested a hundred thousand levels deep must not overflow the stack.
 *
 * @throws {RelayError} `bad_request` for what is nested too deeply
 */
function hasBinary(data: unknown): boolean {
  let isFound = false;
  let level: readonly unknown[] = [data];
  // the event itself is the first level
  for (let depth = 1; level.length > 0; depth++) {
    if (depth > MAX_DEPTH) throw new RelayError('bad_request', `data: nested more than ${MAX_DEPTH} levels deep`);
    const next: unknown[] = [];
    for (const value of level) {
      if (typeof value !== 'object' || value === null) continue;
      if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) {
        isFound = true;
        continue;
      }
      for (const child of Array.isArray(value) ? value : Object.values(value))
        if (typeof child === 'object' && child !== null) next.push(child);
    }
    level = next;
  }
  return isFound;
}
