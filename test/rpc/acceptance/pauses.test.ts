import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { printFaults } from '../../harness/rpc-ledger.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { LEASE_MS, podPauses, registrationsVanish, staysSilent } from './pauses.js';

// pauses.long.test.ts has 150 s of silence, and longer pauses

let rig: RpcRig;
beforeAll(async () => {
  rig = await RpcRig.start();
});
afterAll(() => rig?.[Symbol.asyncDispose]());

describe.concurrent('with nobody’s help', () => {
  it('daemons whose registrations somebody deleted in Redis are callable again within 10 s', async () => {
    const vanished = await registrationsVanish(rig);
    expect(vanished.deleted).toEqual([1, 1, 1]);
    for (const ms of vanished.callableMs) expect(ms).toBeLessThan(10_000);
    expect(vanished.reasserted).toBeGreaterThanOrEqual(3);
  });

  it('daemons that say nothing for longer than a lease stay callable', async () => {
    const silence = await staysSilent(rig, 1.5 * LEASE_MS);
    expect(silence).toEqual({ outcomes: { ok: 9 }, reconnects: 0 });
  });
});

it('a pod that was paused past its lease serves its daemons within 2 s, and steals nothing from newer owners', async () => {
  const paused = await podPauses(rig, LEASE_MS + 1500);
  for (const ms of paused.callableMs) expect(ms).toBeLessThan(2000);
  expect(paused.owners).toEqual(['newer', 'newer', 'newer']);
  expect(paused.replaced).toEqual(['replaced']);
  expect(paused.bystanders.outcomes).toEqual({ ok: paused.bystanders.calls });
});

it('each of these calls had one outcome by its deadline, and ran as often as it said', async () => {
  expect(printFaults(await rig.book.check())).toBe('');
});
