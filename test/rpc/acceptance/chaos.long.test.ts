import { expect, it } from 'vitest';
import { recordEvidence } from '../../harness/evidence.js';
import { eventually } from '../../harness/poll.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { chaos } from './chaos.js';

const RUN_MS = Number(process.env.LONG_CHAOS_MS ?? 180_000);
/** Results are kept for a minute, idle queues for a quarter of an hour at most. */
const KEPT_MS = 20 * 60_000;

it('three minutes of chaos over four pods leave each call one outcome and one run, and Redis as it was', async () => {
  await using rig = await RpcRig.start({ pods: 4, proxied: true, isAlone: true });
  const before = (await rig.keys('rpc:*')).length;
  const options = { runMs: RUN_MS, daemons: 60, callers: 20, callsPerSecond: 40, calmMs: 1000 };
  const seed = Date.now();
  const result = await chaos(rig, options, seed);
  const after = (await rig.keys('rpc:*')).length;
  const from = Date.now();
  await eventually(async () => (await rig.keys('rpc:*')).length <= before, {
    withinMs: KEPT_MS,
    what: 'the keys of calls to expire',
  }).catch(() => {});
  const left = await rig.keys('rpc:*');
  await recordEvidence('rpc-chaos', {
    options,
    seed,
    result,
    keys: { before, after, left, keptMs: Date.now() - from },
  });
  expect(result).toMatchObject({ faults: '', complaints: [], pending: [0, 0, 0, 0] });
  expect(left).toEqual([]);
});
