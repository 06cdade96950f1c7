import { expect, it } from 'vitest';
import { recordEvidence } from '../../harness/evidence.js';
import type { Pod } from '../../harness/pod.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import { callerReturnsLate, expectSurvived, type PodGoesOptions, type PodGone, podGoes } from './pod-goes.js';

const ROUNDS = Number(process.env.LONG_ROUNDS ?? 20);

it.each(['SIGKILL', 'SIGTERM'] as const)('20 of 20: calls outlive the %s of a pod', async (signal) => {
  await using rig = await RpcRig.start({ isAlone: true });
  const options: PodGoesOptions = { handlerMs: 5000, afterMs: 1000, signal };
  const rounds: PodGone[] = [];
  for (let round = 0; round < ROUNDS; round++) rounds.push(await podGoes(rig, round % 3, options));
  await recordEvidence(`rpc-pod-${signal.toLowerCase()}`, { options, rounds });
  for (const round of rounds) expectSurvived(round, options);
});

it('20 of 20: a caller whose pod was killed gets its result after the handler has finished', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const rounds = [];
  for (let round = 0; round < ROUNDS; round++) rounds.push(await callerReturnsLate(rig));
  await recordEvidence('rpc-caller-returns', { rounds });
  for (const round of rounds)
    expect(round.map(({ outcome, runs }) => [outcome, runs])).toEqual(Array(3).fill(['ok', 1]));
});

it('a call of 60 s between healthy pods is answered, though a third one is killed', async () => {
  await using rig = await RpcRig.start({ isAlone: true });
  const callerOn = await rig.callerPerPod();
  const daemons = await rig.daemonPerPod({ kind: 'raw' });
  const [pod, near, far] = rig.pods as [Pod, Pod, Pod];
  const calling = callerOn(near).call('work', { user: daemons.userOn(far), ms: 60_000, timeoutMs: 90_000 });
  await pod.sigkill();
  const { answer, ms } = await calling;
  await recordEvidence('rpc-minute', { answer, ms });
  expect(answer).toMatchObject({ ok: true });
  expect(ms).toBeLessThan(61_000);
});
