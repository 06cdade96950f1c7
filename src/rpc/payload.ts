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

/** The other way, from parsed JSON. */
export function decodePayload(value: unknown): unknown {
  if (typeof value !== 'string' || !value.startsWith(PACKED)) return value;
  return decode(Buffer.from(value.slice(PACKED.length), 'base64'));
}

function pack(value: unknown): string {
  return JSON.stringify(PACKED + Buffer.from(encode(value, { ignoreUndefined: true })).toString('base64'));
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
