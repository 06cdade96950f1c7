import { parseDuration } from '../core/duration.js';
import { type Position, parsePosition } from './position.js';

/** Where a read begins: behind a position, at a time in ms since 1970, or at an end of the log. */
export type ReadFrom = Position | { readonly ms: number } | 'earliest' | 'latest';

/**
 * A position, `earliest`, `latest`, a time (ISO 8601, or ms since 1970), or an age (`10m`).
 *
 * @param redisNow ms since 1970, from which an age counts back
 */
export function parseFrom(text: string, redisNow: number): ReadFrom | undefined {
  if (text === 'earliest' || text === 'latest') return text;
  const position = parsePosition(text);
  if (position) return position;
  if (/^\d{1,15}$/.test(text)) return { ms: Number(text) };
  const age = /^\d{1,9}[a-z]+$/.test(text) ? parseDuration(text) : undefined;
  if (age !== undefined) return { ms: Math.max(0, redisNow - age) };
  if (!/^\d{4}-\d\d-\d\d/.test(text)) return undefined;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? undefined : { ms: Math.max(0, ms) };
}
