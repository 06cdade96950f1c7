import { z } from 'zod';
import { parseDuration } from '../../core/duration.js';
import { RelayError } from '../../core/errors.js';
import { parseIsoDuration } from '../../core/iso-duration.js';
import type { ResetTarget } from '../../log/index.js';
import { parsePosition } from '../../wire/position.js';
import { parseFrom } from '../../wire/read-from.js';

const text = z.string().max(100);

/** Where a group is to stand: one of these, called as the flags of `holdfast groups reset-offsets` are. */
export const resetTarget = {
  toEarliest: z.literal(true).optional().describe('before the oldest entry that the log has'),
  toLatest: z.literal(true).optional().describe('behind the newest'),
  toDatetime: z
    .union([text, z.int().min(0)])
    .optional()
    .describe('before the first entry of that time: ISO 8601, or ms since 1970'),
  byDuration: text.optional().describe('before the first entry of so long ago: 15m, or ISO 8601 (PT15M)'),
  shiftBy: z.int().optional().describe('so many entries on, or back if it is below 0'),
  toPosition: z
    .union([text, z.int().min(0)])
    .optional()
    .describe('behind that entry, in its partition; or behind that offset, in all of them'),
};

const NAMES = Object.keys(resetTarget) as (keyof typeof resetTarget)[];

type Wanted = z.infer<z.ZodObject<typeof resetTarget>>;

/** @throws {RelayError} `bad_request`, naming the field, unless exactly one place is named, and well */
export function targetOf(wanted: Wanted): ResetTarget {
  const [named, ...more] = NAMES.filter((each) => wanted[each] !== undefined);
  if (named === undefined || more.length > 0) throw new RelayError('bad_request', `wants one of ${NAMES.join(', ')}`);
  const { toDatetime, byDuration, shiftBy, toPosition } = wanted;
  switch (named) {
    case 'toEarliest':
      return { to: 'earliest' };
    case 'toLatest':
      return { to: 'latest' };
    case 'toDatetime':
      return { to: 'time', ms: timeOf(toDatetime) };
    case 'byDuration':
      return { to: 'age', ms: durationOf('byDuration', byDuration as string) };
    case 'shiftBy':
      return { to: 'shift', by: shiftBy as number };
    case 'toPosition':
      return placeOf(String(toPosition));
    default:
      named satisfies never;
      throw new TypeError('no such target');
  }
}

/** @throws {RelayError} `bad_request`, naming the field */
export function durationOf(field: string, duration: string): number {
  const ms = parseIsoDuration(duration) ?? parseDuration(duration);
  if (ms !== undefined) return ms;
  throw new RelayError('bad_request', `${field}: wants a duration such as 15m or PT15M`);
}

function timeOf(time: string | number | undefined): number {
  if (typeof time === 'number') return time;
  const at = time === undefined || /^\d+[a-z]/.test(time) ? undefined : parseFrom(time, 0);
  if (typeof at === 'object' && !('offset' in at)) return at.ms;
  throw new RelayError('bad_request', 'toDatetime: wants ISO 8601 or ms since 1970');
}

function placeOf(place: string): ResetTarget {
  const position = parsePosition(place);
  if (position) return { to: 'position', position };
  if (/^\d{1,15}$/.test(place)) return { to: 'offset', offset: Number(place) };
  throw new RelayError('bad_request', 'toPosition: wants a position or an offset');
}
