import { expect, it } from 'vitest';
import { sleep } from '../../src/core/sleep.js';
import { open } from '../harness/client.js';
import { recordEvidence } from '../harness/evidence.js';
import { comeAndGo } from './comings.js';
import { deviceStorm, dismiss, isIn, type StormFigures, someDevice } from './devices.js';
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

it('two clients that fight for one device take it from each other at most twice in a minute', async () => {
  await using rig = await AdmissionRig.start({ pods: 2 });
  const { jwt } = await someDevice();
  let takeovers = 0;
  const fighters = rig.pods.map(({ url }) => open(url, { token: jwt }));
  for (const { socket } of fighters) {
    socket.on('holdfast:closing', ({ code }) => {
      if (code === 'session_replaced') takeovers++;
    });
    socket.on('disconnect', () => setTimeout(() => socket.connected || socket.connect(), 500));
  }
  await sleep(60_000);
  const inside = fighters.filter(isIn).length;
  await recordEvidence('device-fight', { seconds: 60, takeovers, inside });
  expect(takeovers).toBeLessThanOrEqual(2);
  expect(inside).toBeLessThanOrEqual(1);
  for (const { socket } of fighters) socket.removeAllListeners('disconnect');
  await dismiss(fighters);
});
