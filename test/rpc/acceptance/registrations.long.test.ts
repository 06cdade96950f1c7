import { expect, it } from 'vitest';
import { recordEvidence } from '../../harness/evidence.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { callAbsent, registerInTheSameTick } from './calls.js';
import { SCENARIOS } from './registrations.js';

const ROUNDS = Number(process.env.LONG_ROUNDS ?? 20);

it('20 of 20: no call fails in any of the eight ways of registering', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const results: { name: string; outcomes: Readonly<Record<string, number>> }[] = [];
  for (const { name, run } of SCENARIOS)
    for (let round = 0; round < ROUNDS; round++) results.push({ name, outcomes: await run(rig) });
  const faults = printFaults(await rig.book.check());
  await recordEvidence('rpc-registrations', { rounds: ROUNDS, results, faults });
  expect(faults).toBe('');
  for (const { name, outcomes } of results) expect([name, Object.keys(outcomes)]).toEqual([name, ['ok']]);
});

it('500 rounds: what registers in the same tick as it connects is there for callers on every pod', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const outcomes = await registerInTheSameTick(rig, 500);
  await recordEvidence('rpc-same-tick', { outcomes });
  expect(outcomes).toEqual({ ok: 1500 });
});

it('a method that nobody registered is known to be absent within 20 ms, and leaves no key', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const absent = await callAbsent(rig, 1000);
  await recordEvidence('rpc-absent', absent);
  expect(absent.outcomes).toEqual({ no_worker: 1000 });
  expect(absent.p99Ms).toBeLessThan(20);
  expect(absent.keysLeft).toEqual([]);
});
