import { afterAll, beforeAll, expect, it } from 'vitest';
import { CallLoad, tally } from '../../harness/rpc-calls.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { expectLinked, linkCut } from './links.js';

// links.long.test.ts has cuts of 10 and 60 s

let rig: RpcRig;
beforeAll(async () => {
  rig = await RpcRig.start({ proxied: true });
});
afterAll(() => rig?.[Symbol.asyncDispose]());

it('a pod whose link to Redis passes nothing for a while harms only its own calls, which hear so in time', async () => {
  for (const [index, cutMs] of [2000, 3500].entries()) expectLinked(await linkCut(rig, index, cutMs));
});

it('results that take their time on the way from and to Redis find their callers', async () => {
  const daemons = await rig.daemonPerPod({ kind: 'raw' });
  const callerOn = await rig.callerPerPod();
  for (const [n, proxy] of rig.proxies.entries()) proxy.delay(20 * n);
  const load = new CallLoad(5, (n) => {
    const [from, to] = [rig.pods[n % 3], rig.pods[(n >> 1) % 3]];
    if (!from || !to) throw new Error('three pods');
    return callerOn(from).call('work', { user: daemons.userOn(to) });
  });
  await expect.poll(() => load.made, { timeout: 20_000 }).toBeGreaterThan(300);
  const told = await load.stop();
  expect(tally(told)).toEqual({ ok: told.length });
  expect(printFaults(await rig.book.check())).toBe('');
});
