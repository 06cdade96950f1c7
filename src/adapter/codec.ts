import { Encoder, PacketType } from 'socket.io-parser';
import { decodePacket } from '../gateway/frames.js';

const encoder = new Encoder();
const NONE: readonly Buffer[] = [];
const MAX_PLAIN_DEPTH = 20;
/** The only key of an object that stands for binary data. */
const BINARY = '\0binary';

/**
 * Arguments of an event as clients get them: a JSON array, and binary data beside it.
 *
 * @throws {TypeError} for what JSON can't hold
 */
export function encodeArguments(args: readonly unknown[]): { payload: string; attachments: readonly Buffer[] } {
  if (isPlain(args)) return { payload: JSON.stringify(args), attachments: NONE };
  // copies: it may be a while until they are written, and they are the application's
  const [text, ...parts] = encoder.encode({ type: PacketType.EVENT, nsp: '/', data: args as unknown[] });
  if (parts.length === 0) return { payload: text.slice(1), attachments: [] };
  return { payload: text.slice(text.indexOf('-') + 1), attachments: parts.map((part) => Buffer.from(bufferOf(part))) };
}

/** The arguments that `encodeArguments` took. */
export function decodeArguments(payload: string, attachments: readonly Buffer[]): unknown[] {
  const type = attachments.length > 0 ? `5${attachments.length}-` : '2';
  return decodePacket([`${type}${payload}`, ...attachments]).data;
}

/** True for what holds no binary data for sure. Socket.IO's encoder looks for it too, at several times the cost. */
function isPlain(value: unknown, depth = 0): boolean {
  if (typeof value !== 'object' || value === null) return true;
  if (depth > MAX_PLAIN_DEPTH || 'toJSON' in value) return false;
  if (Array.isArray(value)) {
    for (const item of value) if (!isPlain(item, depth + 1)) return false;
    return true;
  }
  if (Object.getPrototypeOf(value) !== Object.prototype) return false;
  for (const key in value) if (!isPlain((value as Record<string, unknown>)[key], depth + 1)) return false;
  return true;
}

/** Any value for another process, as text: JSON, with binary data in base64. */
export function stringify(value: unknown): string {
  if (isPlain(value)) return JSON.stringify(value) ?? 'null';
  return JSON.stringify(value, function (this: Record<string, unknown>, key: string, plain: unknown) {
    // a Buffer has become something else by its own toJSON
    const original = this[key];
    return isBinary(original) ? { [BINARY]: bufferOf(original).toString('base64') } : plain;
  });
}

export function parse(text: string): unknown {
  return JSON.parse(text, (_key, value: unknown) => {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, BINARY)) return value;
    return Buffer.from(String((value as Record<string, unknown>)[BINARY]), 'base64');
  });
}

function isBinary(value: unknown): value is ArrayBuffer | NodeJS.ArrayBufferView {
  return value instanceof ArrayBuffer || ArrayBuffer.isView(value);
}

function bufferOf(part: unknown): Buffer {
  if (Buffer.isBuffer(part)) return part;
  if (ArrayBuffer.isView(part)) return Buffer.from(part.buffer, part.byteOffset, part.byteLength);
  return Buffer.from(part as ArrayBuffer);
}
