import { expect, it } from 'vitest';
import { recordEvidence } from '../../harness/evidence.js';
import { RpcRig } from '../../harness/rpc-rig.js';
import {
  DEMOTED,
  expectSuffered,
  FAILED_OVER,
  FLUSHED,
  FULL,
  type Outage,
  type OutageResult,
  READ_ONLY,
  RESTARTED,
  STOPPED,
  suffer,
} from './outages.js';

const ROUNDS = 5;

/** Each outage in these lengths, `ROUNDS` times. */
const CASES: readonly (readonly [Outage, readonly number[], 'off' | 'everysec'])[] = [
  [STOPPED, [5000, 20_000], 'off'],
  [RESTARTED, [1000, 5000], 'everysec'],
  [RESTARTED, [1000, 5000], 'off'],
  [FLUSHED, [0], 'off'],
  [READ_ONLY, [1000, 10_000], 'off'],
  [FULL, [1000, 10_000], 'off'],
  [DEMOTED, [1000, 10_000], 'off'],
];

it('every call has one outcome through every outage of Redis, and nothing that was refused runs later', async () => {
  const results: (OutageResult & { readonly forMs: number; readonly aof: string })[] = [];
  for (const [outage, lengths, aof] of CASES) {
    await using rig = await RpcRig.start({ redis: { aof } });
    for (const forMs of lengths)
      for (let round = 0; round < ROUNDS; round++) results.push({ ...(await suffer(rig, outage, forMs)), forMs, aof });
  }
  await recordEvidence('rpc-outages', { results });
  for (const result of results) expectSuffered(result);
});

it('a failover to a replica that is 1.5 s behind leaves every daemon callable', async () => {
  const results: OutageResult[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    await using rig = await RpcRig.start({ proxied: true });
    results.push(await suffer(rig, FAILED_OVER, 1500));
  }
  await recordEvidence('rpc-failover', { results });
  for (const { faults, ended, pending, callableMs } of results) {
    expect([faults, ended, pending]).toEqual(['', [], [0, 0, 0]]);
    expect(callableMs).toBeLessThan(10_000);
  }
});
