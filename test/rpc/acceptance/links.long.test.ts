import { expect, it } from 'vitest';
import { recordEvidence } from '../../harness/evidence.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { expectLinked, type LinkCut, linkCut } from './links.js';

it('a pod whose link to Redis passes nothing for 2, 10 and 60 s harms only its own calls', async () => {
  await using rig = await RpcRig.start({ proxied: true, isAlone: true });
  const cuts: LinkCut[] = [];
  for (const cutMs of [2000, 2000, 2000, 10_000, 10_000, 10_000, 60_000, 60_000])
    cuts.push(await linkCut(rig, cuts.length % 3, cutMs));
  await recordEvidence('rpc-links', { cuts });
  expect(cuts).toHaveLength(8);
  for (const cut of cuts) expectLinked(cut);
});
