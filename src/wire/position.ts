/**
 * Where an entry stands in one partition. Clients see it as opaque text, `<epoch>:<partition>:<ms>-<offset>`.
 * Within one epoch the offset alone orders all entries: 1, 2, 3 … without holes.
 */
export interface Position {
  readonly epoch: string;
  readonly partition: number;
  /** Redis time of the append, in ms since 1970; never falls. */
  readonly ms: number;
  readonly offset: number;
}

const SHAPE = /^([0-9A-Za-z_-]{1,16}):(\d{1,5}):(\d{1,15})-(\d{1,15})$/;

export function formatPosition(epoch: string, partition: number, ms: number, offset: number): string {
  return `${epoch}:${partition}:${ms}-${offset}`;
}

/** The position that `text` says, or `undefined` for what is no position of ours. */
export function parsePosition(text: unknown): Position | undefined {
  if (typeof text !== 'string' || text.length > 64) return undefined;
  const match = SHAPE.exec(text);
  if (!match) return undefined;
  return { epoch: match[1] as string, partition: Number(match[2]), ms: Number(match[3]), offset: Number(match[4]) };
}
