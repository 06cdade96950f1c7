import { expect, it } from 'vitest';
import { crowdWhileItHangs, expectUnharmed } from '../test/admission/crowd.js';
import { deviceStorm } from '../test/admission/devices.js';
import { archiveRaces } from '../test/admission/races.js';
import { AdmissionRig } from '../test/admission/rig.js';
import { setting } from './settings.js';

/** HAMMER_PODS, HAMMER_CLIENTS, HAMMER_ROUNDS (of archives), HAMMER_SOCKETS (of one device) */
it('a crowd while Postgres hangs, archives that race connects, and a storm of one device', async () => {
  await using rig = await AdmissionRig.start({ pods: setting('PODS', 3) });
  const crowd = await crowdWhileItHangs(rig, setting('CLIENTS', 500));
  const races = await archiveRaces(rig, setting('ROUNDS', 50));
  const storm = await deviceStorm(rig, { calm: 8, everyMs: 1200, burst: setting('SOCKETS', 30), burstMs: 3000 });
  console.log(JSON.stringify({ crowd, races, storm }, null, 2));
  expectUnharmed(crowd);
  expect(races.open).toBe(0);
  expect({ sessions: storm.authoritative, offline: storm.offline }).toEqual({ sessions: 1, offline: 0 });
});
