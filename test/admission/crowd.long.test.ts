import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { crowdWhileItHangs, expectUnharmed } from './crowd.js';
import { archiveRaces, BY_NOTICE } from './races.js';
import { AdmissionRig } from './rig.js';

it('2,000 clients that come at once while Postgres hangs are all let in, and nobody is dropped afterwards', async () => {
  await using rig = await AdmissionRig.start();
  // a process that has just started compiles what it runs: neither of the two is to pay for that
  await crowdWhileItHangs(rig, 2000, false);
  const healthy = await crowdWhileItHangs(rig, 2000, false);
  const hanging = await crowdWhileItHangs(rig, 2000);
  await recordEvidence('admission-crowd', { healthy, hanging });
  expectUnharmed(hanging);
  // 2,000 connects are work enough for these cores: what counts is that an outage adds none
  expect(hanging.loopDelayP99).toBeLessThan(Math.max(100, 1.25 * healthy.loopDelayP99));
});

it('200 rounds: no socket of a tenant stays that was archived while it connected', async () => {
  await using rig = await AdmissionRig.start({ env: BY_NOTICE });
  const races = await archiveRaces(rig, 200);
  await recordEvidence('admission-races', races);
  expect(races.open).toBe(0);
});
