import { RelayError } from '../core/errors.js';

/** Of params, and of a result: the relay's own limit. What is larger than its transport takes would cost the connection. */
const MAX_BYTES = 1_000_000;

/** @throws {RelayError} `payload_too_large`; `bad_request` for what JSON can't hold: a cycle, a bigint, what is nested too deeply */
export function checkSize(what: string, value: unknown): number {
  let bytes: number;
  try {
    bytes = measure(value);
  } catch (cause) {
    throw new RelayError('bad_request', `${what}: ${(cause as Error).message}`, { cause });
  }
  if (bytes <= MAX_BYTES) return bytes;
  throw new RelayError('payload_too_large', `${what}: ${bytes} bytes, the limit is ${MAX_BYTES}`);
}

/** The bytes that it has on the wire, binary parts included. */
function measure(value: unknown): number {
  let bytes = 0;
  // `this`, as a Buffer is JSON already when it is given
  const text = JSON.stringify([value], function (this: Record<string, unknown>, key: string, part: unknown) {
    const size = sizeOfBinary(this[key]);
    if (size === undefined) return part;
    bytes += size;
    return 0;
  });
  return bytes + new TextEncoder().encode(text).length;
}

function sizeOfBinary(value: unknown): number | undefined {
  if (value instanceof ArrayBuffer || ArrayBuffer.isView(value)) return value.byteLength;
  return value instanceof Blob ? value.size : undefined;
}
