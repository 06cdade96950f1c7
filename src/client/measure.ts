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

/** The bytes that it has on the wire, binary parts included. */
function measure(value: unknown): number {
  let bytes = 0;
  // by `this`, as a Buffer is JSON already when it is given; in an array, as no JSON at all is `null` there
  const text = JSON.stringify([value], function (this: Record<string, unknown>, key: string, part: unknown) {
    const size = sizeOfBinary(this[key]);
    if (size === undefined) return part;
    bytes += size;
    return 0;
  });
  return bytes + new TextEncoder().encode(text).length - '[]'.length;
}

function sizeOfBinary(value: unknown): number | undefined {
  if (value instanceof ArrayBuffer || ArrayBuffer.isView(value)) return value.byteLength;
  return value instanceof Blob ? value.size : undefined;
}
