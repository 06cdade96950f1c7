import { RelayError } from '../core/errors.js';

/** Of params, or of a result: what is larger than the relay's transport takes would cost the connection, again and again. */
export interface SizeLimit {
  readonly maxPayloadBytes: number;
}

/** @throws {RelayError} `payload_too_large`; `bad_request` for what JSON can't hold: a cycle, a bigint, what is nested too deeply */
export function checkSize(what: string, value: unknown, { maxPayloadBytes }: SizeLimit): number {
  let bytes: number;
  try {
    bytes = measure(value);
  } catch (cause) {
    throw new RelayError('bad_request', `${what}: ${(cause as Error).message}`, { cause });
  }
  if (bytes <= maxPayloadBytes) return bytes;
  throw new RelayError('payload_too_large', `${what}: ${bytes} bytes, the limit is ${maxPayloadBytes}`);
}

/** The relay carries what has binary parts as base64 of the whole, with a mark. */
const MARK_BYTES = 16;
const HEAD_BYTES = 5;

/** The bytes that it has in the relay: of its JSON, or about those of its base64. */
function measure(value: unknown): number {
  let bytes = 0;
  let hasBinary = false;
  // by `this`, as a Buffer is JSON already when it is given; in an array, as no JSON at all is `null` there
  const text = JSON.stringify([value], function (this: Record<string, unknown>, key: string, part: unknown) {
    const binary = this[key];
    if (!isBinary(binary)) return part;
    hasBinary = true;
    bytes += HEAD_BYTES - 1 + (binary instanceof Blob ? binary.size : binary.byteLength);
    return 0;
  });
  bytes += new TextEncoder().encode(text).length - '[]'.length;
  return hasBinary ? Math.ceil(bytes / 3) * 4 + MARK_BYTES : bytes;
}

export function isBinary(value: unknown): value is ArrayBuffer | ArrayBufferView | Blob {
  return value instanceof ArrayBuffer || ArrayBuffer.isView(value) || value instanceof Blob;
}
