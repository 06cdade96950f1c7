const PRIME = 0x01000193;

/** 32 bits that tell one event's content from another's (FNV-1a); not for enemies. Of binary parts only size and ends count. */
export function fingerprint(...values: readonly unknown[]): number {
  return mix(0x811c9dc5, values) >>> 0;
}

function mix(hash: number, value: unknown): number {
  if (typeof value !== 'object' || value === null) return mixText(hash, `${typeof value}${String(value)}`);
  if (value instanceof ArrayBuffer) return mixBytes(hash, new Uint8Array(value));
  if (ArrayBuffer.isView(value))
    return mixBytes(hash, new Uint8Array(value.buffer, value.byteOffset, value.byteLength));
  let mixed = mixText(hash, Array.isArray(value) ? '[' : '{');
  for (const [key, child] of Object.entries(value)) mixed = mix(mixText(mixed, key), child);
  return mixed;
}

function mixText(hash: number, text: string): number {
  let mixed = hash;
  for (let index = 0; index < text.length; index++) mixed = Math.imul(mixed ^ text.charCodeAt(index), PRIME);
  // so that ["ab"] and ["a", "b"] differ
  return Math.imul(mixed ^ text.length, PRIME);
}

function mixBytes(hash: number, bytes: Uint8Array): number {
  return mixText(hash, `${bytes.length}:${bytes.subarray(0, 64)}:${bytes.subarray(-64)}`);
}
