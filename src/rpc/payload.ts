import { decode, encode } from '@msgpack/msgpack';
import { RelayError } from '../core/errors.js';

/** Marks a text that holds what JSON can't. Somebody's own text that begins so is carried the same way. */
const PACKED = '\u0000msgpack:';

/**
 * Params or a result as JSON: what stock BullMQ tools show. Binary parts make it one packed text.
 *
 * @throws {RelayError} `payload_too_large`, or `bad_request` for what can't be carried (a cycle, a BigInt)
 */
export function encodePayload(value: unknown, maxBytes: number): string {
  let text: string;
  try {
    text = needsPacking(value, 0) ? pack(value) : (JSON.stringify(value) ?? 'null');
  } catch (error) {
    throw new RelayError('bad_request', 'the payload cannot be carried as JSON', { cause: error });
  }
  // three bytes a character at most: most texts need no count
  if (text.length > maxBytes || (text.length * 3 > maxBytes && Buffer.byteLength(text) > maxBytes))
    throw new RelayError('payload_too_large', `the payload has more than ${maxBytes} bytes`);
  return text;
}

/** The other way, from parsed JSON. What only looks packed is a text. */
export function decodePayload(value: unknown): unknown {
  if (typeof value !== 'string' || !value.startsWith(PACKED)) return value;
  try {
    return decode(Buffer.from(value.slice(PACKED.length), 'base64'));
  } catch {
    return value;
  }
}

function pack(value: unknown): string {
  return JSON.stringify(PACKED + Buffer.from(encode(packable(value), { ignoreUndefined: true })).toString('base64'));
}

/** msgpack knows views only, and its decoder refuses the one name. */
function packable(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return value;
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  if (Array.isArray(value)) return value.map(packable);
  const plain: Record<string, unknown> = {};
  for (const [key, item] of Object.entries(value)) {
    if (key === '__proto__') throw new TypeError('a key is __proto__');
    plain[key] = packable(item);
  }
  return plain;
}

const MAX_DEPTH = 200;

function needsPacking(value: unknown, depth: number): boolean {
  if (typeof value === 'string') return depth === 0 && value.startsWith(PACKED);
  if (typeof value !== 'object' || value === null) return false;
  if (depth > MAX_DEPTH) throw new RangeError('nested too deeply');
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return true;
  if (Array.isArray(value)) return value.some((item) => needsPacking(item, depth + 1));
  for (const key in value)
    if (Object.hasOwn(value, key) && needsPacking((value as Record<string, unknown>)[key], depth + 1)) return true;
  return false;
}
