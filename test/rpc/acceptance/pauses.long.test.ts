import { expect, it } from 'vitest';
import { recordEvidence } from '../../harness/evidence.js';
import { printFaults } from '../../harness/rpc-ledger.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { podPauses, registrationsVanish, staysSilent } from './pauses.js';

const ROUNDS = Number(process.env.LONG_ROUNDS ?? 20);

it('daemons that say nothing for 150 s stay callable', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const silence = await staysSilent(rig, 150_000);
  await recordEvidence('rpc-silence', silence);
  expect(silence).toEqual({ outcomes: { ok: 9 }, reconnects: 0 });
});

it('pods that were paused past their lease serve their daemons within 2 s, and steal nothing', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const rounds = [];
  for (const pauseMs of [4000, 6000, 10_000, 15_000]) rounds.push(await podPauses(rig, pauseMs));
  const faults = printFaults(await rig.book.check());
  await recordEvidence('rpc-pod-pauses', { rounds, faults });
  for (const round of rounds) {
    for (const ms of round.callableMs) expect(ms).toBeLessThan(2000);
    expect(round.owners).toEqual(['newer', 'newer', 'newer']);
    expect(round.bystanders.outcomes).toEqual({ ok: round.bystanders.calls });
  }
  expect(faults).toBe('');
});

it('20 of 20: deleted registrations are back within 10 s', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const rounds = [];
  for (let round = 0; round < ROUNDS; round++) rounds.push(await registrationsVanish(rig));
  const faults = printFaults(await rig.book.check());
  await recordEvidence('rpc-registrations-vanish', { rounds, faults });
  for (const { callableMs } of rounds) for (const ms of callableMs) expect(ms).toBeLessThan(10_000);
  expect(faults).toBe('');
});
