import { expect, it } from 'vitest';
import { RpcRig } from '../test/harness/rpc-rig.js';
import { chaos } from '../test/rpc/acceptance/chaos.js';
import { setting } from './settings.js';

/** HAMMER_PODS, HAMMER_DAEMONS, HAMMER_CALLERS, HAMMER_CALLS_PER_SECOND, HAMMER_CALM_MS, HAMMER_SECONDS, HAMMER_SEED */
it('calls under kills, pauses, deploys, cut sockets and cut links', async () => {
  await using rig = await RpcRig.start({ pods: setting('PODS', 3), proxied: true });
  const seed = setting('SEED', Date.now());
  const result = await chaos(
    rig,
    {
      runMs: setting('SECONDS', 60) * 1000,
      daemons: setting('DAEMONS', 30),
      callers: setting('CALLERS', 10),
      callsPerSecond: setting('CALLS_PER_SECOND', 40),
      calmMs: setting('CALM_MS', 1000),
    },
    seed,
  );
  console.log(JSON.stringify({ seed, ...result }, null, 2));
  expect([result.faults, result.complaints]).toEqual(['', []]);
});
