import { afterAll, beforeAll, describe, it } from 'vitest';
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

/**
 * A test for each scenario of the groups, in order; each group has a stage of its own. In the short form the groups run
 * beside each other, since they wait more than they work; all stages stand before the first scenario begins, so that no pod's
 * start slows the answers that another group looks at.
 */
export function testGroups(
  groups: readonly Group[],
  form: 'short' | 'long',
  keep: (outcome: Outcome) => void = () => {},
): void {
  const isTogether = form === 'short';
  const trials = groups.map((group) => new Trial(group, form));
  let allStand: Promise<unknown> | undefined;
  for (const [index, { name, scenarios }] of groups.entries())
    describe(`every accepted event comes once and in order, or a gap names it: ${name}`, {
      concurrent: isTogether,
    }, () => {
      const trial = trials[index] as Trial;
      if (isTogether)
        beforeAll(() => {
          allStand ??= Promise.all(trials.map((each) => each.start()));
          return allStand;
        });
      afterAll(() => trial[Symbol.asyncDispose]());

      for (const scenario of scenarios) it.sequential(scenario.name, async () => keep(await trial.run(scenario)));

      it.sequential('afterwards its pods leave when they are told to', () => trial.end());
    });
}
