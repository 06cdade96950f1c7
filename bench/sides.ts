import { Side, type SideName } from './side.js';

/**
 * Sides of one part, started afresh so that no part inherits another's heap, and gone after it.
 *
 * @param options of Holdfast's adapter
 */
export async function withSides<Result>(
  names: readonly SideName[],
  work: (sides: readonly Side[]) => Promise<Result>,
  options?: object,
): Promise<Result> {
  const started = await Promise.allSettled(names.map((name) => Side.start(name, options)));
  const sides = started.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
  try {
    const failed = started.find((outcome) => outcome.status === 'rejected');
    if (failed) throw failed.reason;
    return await work(sides);
  } finally {
    await Promise.all(sides.map((side) => side[Symbol.asyncDispose]()));
  }
}

export const without = (names: readonly SideName[], ...unwanted: readonly SideName[]): readonly SideName[] =>
  names.filter((name) => !unwanted.includes(name));
