/**
 * A plan says what is published: `count` events, the k-th to the room `rooms[k % rooms.length]`.
 * What somebody in some rooms must receive follows from it.
 */
export const roomOf = ({ rooms }, k) => rooms[k % rooms.length];

/** Folds the n-th event into what was received so far: two sequences have the same digest only if they are the same. */
export const digest = (sofar, n) => (Math.imul(sofar, 31) + n + 1) | 0;

/** Number and digest of the events of a plan for a member of `joined`. */
export function expectation(plan, joined) {
  const mine = new Set(joined);
  let count = 0;
  let sum = 0;
  for (let k = 0; k < plan.count; k++) {
    if (!mine.has(roomOf(plan, k))) continue;
    count++;
    sum = digest(sum, k);
  }
  return { count, digest: sum };
}
