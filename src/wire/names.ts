const MAX_NAME_LENGTH = 200;
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this looks for
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;
const RESERVED = /^(holdfast:|rpc-|device:)/;
/** `presence` is ours; the rest Socket.IO keeps for itself on either side. */
const RESERVED_NAMES = new Set([
  'presence',
  'connect',
  'connect_error',
  'connection',
  'disconnect',
  'disconnecting',
  'error',
  'newListener',
  'removeListener',
]);

/** Rooms, events, methods, ids, users and tenants: 1–200 UTF-16 units, well-formed, no control characters. */
export function isName(value: unknown): value is string {
  return (
    typeof value === 'string' &&
    value.length > 0 &&
    value.length <= MAX_NAME_LENGTH &&
    !CONTROL.test(value) &&
    // a lone surrogate would become U+FFFD on its way, and so another name's alias; Node 20 has isWellFormed, its types don't
    (value as string & { isWellFormed(): boolean }).isWellFormed()
  );
}

/**
 * A room: a name, or a room of the relay's own, in which escaping makes a user's or device's name up to nine times as long.
 */
export function isRoom(value: unknown): value is string {
  if (isName(value)) return true;
  if (typeof value !== 'string' || value.length > 2 * 9 * MAX_NAME_LENGTH + 10) return false;
  const [, own, pair] = /^(?:(?:user|tenant):([^/]+)|device:([^/]+\/[^/]+))$/.exec(value) ?? [];
  return (own ?? pair)?.split('/').every(isEscapedName) ?? false;
}

function isEscapedName(part: string): boolean {
  try {
    const name = decodeURIComponent(part);
    return isName(name) && escapePart(name) === part;
  } catch {
    return false;
  }
}

/** A name that somebody may publish: not one of the relay's own, nor one that Socket.IO reserves. */
export function isPublishableEvent(value: unknown): value is string {
  return isName(value) && !RESERVED.test(value) && !RESERVED_NAMES.has(value);
}

/** Somebody's text as part of a longer name. `*` goes too, so that it never becomes a pattern. */
export function escapePart(part: string): string {
  return encodeURIComponent(part).replaceAll('*', '%2A');
}

/** Joins parts that hold somebody's text, so that no two different lists of parts give the same text. */
export function scoped(...parts: readonly string[]): string {
  return parts.map(escapePart).join('/');
}
