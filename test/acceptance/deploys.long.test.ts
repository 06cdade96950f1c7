import { expect, it } from 'vitest';
import { recordEvidence } from '../harness/evidence.js';
import { isClean, printLedger } from '../harness/ledger.js';
import { type DeployOptions, type DeployResult, runDeploys } from './deploys.js';

function check({ ledger, faults }: DeployResult): void {
  expect(isClean(ledger), printLedger(ledger)).toBe(true);
  expect(ledger.gaps).toBe(0);
  expect(ledger.acceptedShare).toBeGreaterThanOrEqual(0.99);
  for (const fault of faults.filter(({ name }) => name === 'SIGKILL')) {
    expect(fault.disconnected).toBeLessThanOrEqual(fault.hit);
    expect(fault.bystanderPauseMs).toBeLessThanOrEqual(1000);
  }
}

for (const { pods, rounds } of [
  { pods: 2, rounds: 3 },
  { pods: 3, rounds: 2 },
]) {
  it(`${pods} pods behind haproxy, ${rounds} rounds of SIGTERM, SIGKILL, SIGSTOP and a Redis restart`, async () => {
    const options: DeployOptions = {
      pods,
      clients: 50,
      httpPerSecond: 150,
      socketPerSecond: 70,
      calmMs: 3000,
      pausedMs: 8000,
      eachPod: 'terminated and killed',
      rounds,
    };
    const result = await runDeploys(options);
    await recordEvidence(`deploys-${pods}-pods`, { options, ...result });
    check(result);
  });
}
