import { isBinary } from './measure.js';

/** What JSON makes of it, with its binary parts: what the caller does to his own afterwards changes nothing. No cycles. */
export function copyOf(value: unknown, key = ''): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (isBinary(value)) return bytesOf(value);
  if ('toJSON' in value && typeof value.toJSON === 'function') return copyOf(value.toJSON(key));
  if (value instanceof Number || value instanceof String || value instanceof Boolean) return value.valueOf();
  if (Array.isArray(value)) return Array.from(value, (part, index) => copyOf(part, String(index)));
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, copyOf(part, name)]));
}

function bytesOf(value: ArrayBuffer | ArrayBufferView | Blob): Uint8Array | Blob {
  if (value instanceof Blob) return value;
  const bytes = ArrayBuffer.isView(value)
    ? new Uint8Array(value.buffer, value.byteOffset, value.byteLength)
    : new Uint8Array(value);
  return bytes.slice();
}
