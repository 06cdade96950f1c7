// the long form has more pods, rounds and time, and terminates and kills each pod: deploys.long.test.ts
import { expect, it } from 'vitest';
import { isClean, printLedger } from '../harness/ledger.js';
import { runDeploys } from './deploys.js';

it('every client gets every accepted event, in order, once, through deploys, kills, pauses and a Redis restart', {
  timeout: 180_000,
}, async () => {
  const result = await runDeploys({
    pods: 2,
    clients: 50,
    httpPerSecond: 150,
    socketPerSecond: 60,
    calmMs: 500,
    downMs: 1500,
    pausedMs: 4000,
    eachPod: 'terminated or killed',
    rounds: 1,
  });
  const { ledger, faults } = result;
  console.log(printLedger(ledger), JSON.stringify({ ...result, ledger: undefined }));
  expect(isClean(ledger), printLedger(ledger)).toBe(true);
  expect(ledger.gaps).toBe(0);
  expect(ledger.refused + ledger.unknown).toBe(0);
  expect(ledger.accepted).toBe(ledger.offered);
  for (const fault of faults.filter(({ name }) => name === 'SIGKILL')) {
    expect(fault.disconnected).toBeLessThanOrEqual(fault.hit);
    expect(fault.bystanderPauseMs).toBeLessThanOrEqual(1000);
  }
});
