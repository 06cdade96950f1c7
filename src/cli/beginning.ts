import { FatalError } from '../core/errors.js';
import type { LogAccess } from '../log/index.js';
import { formatPosition } from '../wire/position.js';
import { parseFrom, type ReadFrom } from '../wire/read-from.js';

export interface Place {
  readonly ms: number;
  readonly offset: number;
}

/** Where a read of one partition begins. */
export interface Beginning {
  readonly after: Place;
  /** Of `after`; `undefined`: reading begins at a time or at the oldest entry, and misses nothing before it. */
  readonly epoch: string | undefined;
}

/** @throws {FatalError} it says no place */
export async function whereOf(log: LogAccess, flag: string, text: string): Promise<ReadFrom> {
  const where = parseFrom(text, await log.now());
  if (where !== undefined) return where;
  throw new FatalError(`${flag}: wants a position, earliest, latest, a time or an age, got ${JSON.stringify(text)}`);
}

/**
 * @param start of this partition, if it is a position
 * @throws {FatalError} it is no position of this log
 */
export async function beginningAt(
  log: LogAccess,
  topic: string,
  partition: number,
  start: ReadFrom,
): Promise<Beginning> {
  if (start === 'earliest') return { after: { ms: 0, offset: 0 }, epoch: undefined };
  const { newest, epoch } = await log.page(topic, partition, { ms: 0, offset: 0 }, { entries: 1, bytes: 1 });
  if (start === 'latest') return { after: newest, epoch };
  if (!('offset' in start)) return { after: { ms: start.ms, offset: 0 }, epoch: undefined };
  const { ms, offset } = start;
  if (start.epoch === epoch && offset > newest.offset)
    throw new FatalError(`--from: no position of this log, got ${formatPosition(epoch, partition, ms, offset)}`);
  return { after: { ms, offset }, epoch: start.epoch };
}
