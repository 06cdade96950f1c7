import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { crowdWhileItHangs, expectUnharmed } from './crowd.js';
import { archiveRaces } from './races.js';
import { AdmissionRig } from './rig.js';

it('2,000 clients that come at once while Postgres hangs are all let in, and nobody is dropped afterwards', async () => {
  await using rig = await AdmissionRig.start();
  const figures = await crowdWhileItHangs(rig, 2000);
  await recordEvidence('admission-crowd', figures);
  expectUnharmed(figures);
  expect(figures.loopDelayP99).toBeLessThan(100);
});

it('200 rounds: no socket of a tenant stays that was archived while it connected', async () => {
  await using rig = await AdmissionRig.start();
  const races = await archiveRaces(rig, 200);
  await recordEvidence('admission-races', races);
  expect(races.open).toBe(0);
});
