/** Full-jitter back-off: a random wait between 0 and min(capMs, baseMs · 2^attempt). `attempt` counts from 0. */
export function fullJitter(attempt: number, baseMs: number, capMs: number, random: () => number = Math.random): number {
  return random() * Math.min(capMs, baseMs * 2 ** Math.min(attempt, 30));
}
