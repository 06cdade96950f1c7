import { afterAll, beforeAll, expect, it } from 'vitest';
import { RpcRig } from '../../harness/rpc-rig.js';
import { callerReturnsLate, expectSurvived, podGoes } from './pod-goes.js';

// pod-goes.long.test.ts has 20 runs of each, with handlers of 5 s

let rig: RpcRig;
beforeAll(async () => {
  rig = await RpcRig.start();
});
afterAll(() => rig?.[Symbol.asyncDispose]());

it('calls outlive the SIGKILL of their daemon’s or their caller’s pod, and others do not notice', async () => {
  const options = { handlerMs: 2500, afterMs: 600, signal: 'SIGKILL' } as const;
  expectSurvived(await podGoes(rig, 0, options), options);
});

it('calls outlive the SIGTERM of their daemon’s or their caller’s pod, which leaves within its grace', async () => {
  const options = { handlerMs: 3200, afterMs: 400, signal: 'SIGTERM' } as const;
  expectSurvived(await podGoes(rig, 1, options), options);
});

it('a caller whose pod was killed gets the one result after the handler has finished, by its id', async () => {
  const answers = await callerReturnsLate(rig);
  expect(answers.map(({ outcome, runs }) => [outcome, runs])).toEqual(Array(3).fill(['ok', 1]));
});
