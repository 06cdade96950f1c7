/** With the other fields the event's argument is 200 bytes of JSON. */
const text = 'x'.repeat(159);

/** The n-th event of a plan, stamped with its time of publication. */
export const eventOf = (n, at) => ({ n, at, text });

export const EVENT = 'tick';

const HEAD = Buffer.from(`42["${EVENT}",{"n":`);
const BETWEEN = ',"at":'.length;

/** Reads `n` and `at` of an event where it lies, since a parser would cost more than the rest of a client; else `undefined`. */
export function readEvent(buffer, start, end) {
  if (end - start < HEAD.length || buffer.compare(HEAD, 0, HEAD.length, start, start + HEAD.length) !== 0)
    return undefined;
  const n = readNumber(buffer, start + HEAD.length);
  return { n: n.value, at: readNumber(buffer, n.end + BETWEEN).value };
}

function readNumber(buffer, start) {
  let value = 0;
  let end = start;
  for (; buffer[end] >= 48 && buffer[end] <= 57; end++) value = value * 10 + buffer[end] - 48;
  return { value, end };
}
