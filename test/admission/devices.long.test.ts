import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { comeAndGo } from './comings.js';
import { deviceFight, deviceStorm, type StormFigures } from './devices.js';
import { AdmissionRig } from './rig.js';

it('8 sockets in 9 s and 30 in 3 s over three pods leave one session, online throughout, in and out of the warm-up', async () => {
  const figures: Record<string, StormFigures> = {};
  for (const [state, warmup] of [
    ['warmingUp', '30s'],
    ['warm', '0'],
  ] as const) {
    await using rig = await AdmissionRig.start({ pods: 3, env: { HOLDFAST_ADMISSION_WARMUP_MS: warmup } });
    figures[state] = await deviceStorm(rig, { calm: 8, everyMs: 9000 / 7, burst: 30, burstMs: 3000 });
  }
  await recordEvidence('device-storm', figures);
  for (const { authoritative, offline, loopDelayP99 } of Object.values(figures)) {
    expect({ authoritative, offline }).toEqual({ authoritative: 1, offline: 0 });
    expect(loopDelayP99).toBeLessThan(50);
  }
});

it('500 refused, 200 reset, 100 taken over and 100 that leave: afterwards all gauges are 0, and the counters add up', async () => {
  await using rig = await AdmissionRig.start({ pods: 3, env: { HOLDFAST_SETTLE_MS: '500' } });
  const comings = { refused: 500, resets: 200, takeovers: 100, clean: 100 };
  await comeAndGo(rig, comings);
  await recordEvidence('admission-comings', comings);
});

it('two clients that fight for one device take it from each other at most twice in a minute, and it is online', async () => {
  await using rig = await AdmissionRig.start({ pods: 2 });
  const fight = await deviceFight(rig, 60_000, 500);
  await recordEvidence('device-fight', fight);
  expect(fight.takeovers).toBeLessThanOrEqual(2);
  expect(fight).toMatchObject({ offline: 0, sockets: 1 });
});
