import { afterAll, describe, it } from 'vitest';
import { FAILOVER } from './failover.js';
import { ODDITIES } from './oddities.js';
import { REFUSALS } from './refusals.js';
import type { Group } from './scenario.js';
import { type Outcome, Trial } from './trial.js';
import { VANISHING } from './vanishing.js';
import { WIRE } from './wire.js';

/** Redis can't be reached, or doesn't serve: nothing is lost. */
export const SERVING: readonly Group[] = [WIRE, REFUSALS];

/** Redis has other data than before, or pods see other data than they should. */
export const DATA: readonly Group[] = [VANISHING, FAILOVER, ODDITIES];

/** A test for each scenario of the groups, in order; each group has a stage of its own. */
export function testGroups(
  groups: readonly Group[],
  form: 'short' | 'long',
  keep: (outcome: Outcome) => void = () => {},
): void {
  for (const group of groups)
    describe(`every accepted event comes once and in order, or a gap names it: ${group.name}`, () => {
      const trial = new Trial(group, form);
      afterAll(() => trial[Symbol.asyncDispose]());

      for (const scenario of group.scenarios) it(scenario.name, async () => keep(await trial.run(scenario)));

      it('afterwards its pods leave when they are told to', () => trial.end());
    });
}
