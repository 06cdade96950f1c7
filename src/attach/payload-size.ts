/**
 * About how many bytes a payload of a socket keeps in memory; `false`: more than `maxBytes`. Looks at no more of it than it takes to
 * know that.
 */
export function sizeUpTo(payload: unknown, maxBytes: number): number | false {
  const left: unknown[] = [payload];
  let bytes = 0;
  while (left.length > 0) {
    const value = left.pop();
    bytes += 8;
    if (typeof value === 'string') bytes += value.length;
    else if (ArrayBuffer.isView(value)) bytes += value.byteLength;
    else if (typeof value === 'object' && value !== null)
      for (const [key, part] of Object.entries(value)) {
        bytes += key.length;
        left.push(part);
      }
    if (bytes > maxBytes) return false;
  }
  return bytes;
}
