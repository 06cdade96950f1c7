/** How many partitions the member of that rank has: the parts of all add up, and differ by one at most. */
export function quotaOf(rank: number, members: number, partitions: number): number {
  return Math.floor(partitions / members) + (rank < partitions % members ? 1 : 0);
}
