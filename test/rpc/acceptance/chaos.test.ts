import { expect, it } from 'vitest';
import { RpcRig } from '../../harness/rpc-rig.js';
import { chaos } from './chaos.js';

// chaos.long.test.ts has three minutes of it, on four pods

it('pods, daemons and links that fail at random leave each call one outcome and one run', async () => {
  await using rig = await RpcRig.start({ proxied: true });
  const options = { runMs: 6000, daemons: 12, callers: 6, callsPerSecond: 40, calmMs: 500 };
  const seed = Math.floor(Math.random() * 1e9);
  const { calls, outcomes, faults, complaints, pending, story } = await chaos(rig, options, seed);
  expect({ seed, faults, complaints, pending }).toEqual({ seed, faults: '', complaints: [], pending: [0, 0, 0] });
  expect({ story, outcomes, isMostlyOk: (outcomes.ok ?? 0) > 0.5 * calls }).toMatchObject({ isMostlyOk: true });
});
