import { createHash } from 'node:crypto';

/** The partition of a tenant: all of its events are in one, in one order. */
export function partitionOf(tenant: string, partitions: number): number {
  if (partitions <= 1) return 0;
  return createHash('sha256').update(tenant).digest().readUInt32BE(0) % partitions;
}
